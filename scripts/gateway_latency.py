"""Latency that a gateway adds: the same speech direct to a real server and through a gateway, at the same time.

Streams begin at random moments: which ones share a batch decides how long each waits for it, for all of its chunks. So
each is a row of short ones. Each sends 100 ms of audio when it is spoken. Three times are taken: from the last part of
a chunk to its text, from the end of the audio to the last text, and from the end of a segment's last word to its final
text where a pause ends the segment.
"""

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import soxr

from loadtest.fresh_gateway import RunningGateway, fresh_gateway
from loadtest.fresh_server import ServerPlan, fresh_server
from loadtest.gateway_clients import Speech, Text, Texts, direct_texts, realtime_texts, riva_texts
from loadtest.gateway_recordings import RATE_HZ, joined_recordings
from loadtest.options import BUNDLE
from penstock.reporting import markdown_table, percentiles_ms
from penstock_client import AsyncClient

SILENCE_MS = 800
_DIRECT = "direct"
_ADDED_LIMIT_MS = 15.0
_PARTS = 6
"""Streams one after another, in place of one long one."""
_FINAL_LIMIT_MS = 150.0
"""Beyond the pause and one chunk."""


class Times(NamedTuple):
    """Seconds, of all streams of one way."""

    chunks: list[float]
    """From the last part of a chunk to its text."""
    ends: list[float]
    """From the last part of the audio to the last text."""
    pauses: list[float]
    """From the end of the last word to the final text of its segment."""


class Way(NamedTuple):
    """One way to a text."""

    name: str
    rate_hz: int
    open: Callable[[RunningGateway, AsyncClient, Speech, int], Texts]


WAYS = (
    Way(_DIRECT, 16_000, lambda gateway, client, speech, silence_ms: direct_texts(client, speech, silence_ms)),
    Way("riva", 16_000, lambda gateway, client, speech, silence_ms: riva_texts(gateway, speech)),
    Way(
        "realtime", 16_000,
        lambda gateway, client, speech, silence_ms: realtime_texts(gateway, speech, has_endpoints=silence_ms > 0),
    ),
    Way(
        "realtime, 24 kHz", 24_000,
        lambda gateway, client, speech, silence_ms: realtime_texts(gateway, speech, has_endpoints=silence_ms > 0),
    ),
)  # fmt: skip


def report_latency(streams: int, seconds: float) -> None:
    """Prints the latencies of `streams` streams of each way with `seconds` of audio, without and with endpoints."""
    plan = ServerPlan(BUNDLE, None, 2 * len(WAYS) * streams, threads=1)
    with fresh_server(plan) as server:
        chunk_ms = float(str(server.facts["chunk_ms"]))
        for silence_ms in (0, SILENCE_MS):
            flags = ("--endpoint-silence-ms", str(silence_ms), "--timeout-s", "60")
            with fresh_gateway(server.url("grpc"), *flags) as gateway:
                times = asyncio.run(_play(gateway, server.url("grpc"), streams, seconds, silence_ms, chunk_ms))
            print(f"\n{streams} streams of each way, {seconds:g} s, load {os.getloadavg()[0]:.1f}:\n")
            print(_pauses(times, silence_ms, chunk_ms) if silence_ms else _added(times), flush=True)


async def _play(
    gateway: RunningGateway, url: str, streams: int, seconds: float, silence_ms: int, chunk_ms: float
) -> dict[str, Times]:
    times: dict[str, Times] = defaultdict(lambda: Times([], [], []))
    delays_s = np.random.default_rng(0).uniform(0, chunk_ms / 1000, (streams, len(WAYS), _PARTS))
    async with AsyncClient(url, timeout_s=60) as client:

        async def run(way: Way, number: int, delays_s: np.ndarray) -> None:
            for part, delay_s in enumerate(delays_s):
                await asyncio.sleep(delay_s)
                samples = joined_recordings(number * _PARTS + part, seconds / _PARTS)
                speech = Speech(_at_rate(samples, way.rate_hz), way.rate_hz)
                await _note(way.open(gateway, client, speech, silence_ms), speech, times[way.name])

        jobs = [(way, number, delays_s[number, i]) for number in range(streams) for i, way in enumerate(WAYS)]
        await asyncio.gather(*(run(*job) for job in jobs))
    return times


def _at_rate(samples: np.ndarray, rate_hz: int) -> np.ndarray:
    return samples if rate_hz == RATE_HZ else soxr.resample(samples, RATE_HZ, rate_hz)


async def _note(texts: Texts, speech: Speech, times: Times) -> None:
    last_s = float("nan")
    async for text in texts:
        last_s = time.monotonic()
        if text.is_final:
            times.pauses.extend(_since_last_word(text, speech, last_s))
        elif text.processed_s is not None:
            times.chunks.append(last_s - speech.due_s(text.processed_s))
    times.ends.append(last_s - speech.end_s)


def _since_last_word(text: Text, speech: Speech, now_s: float) -> list[float]:
    return [now_s - speech.begin_s - text.words[-1][2] / 1000] if text.words else []


def _added(times: dict[str, Times]) -> str:
    """The table of chunks and ends, and what the gateway adds."""
    direct = {name: percentiles_ms(getattr(times[_DIRECT], name)) for name in ("chunks", "ends")}
    rows = []
    for way in WAYS:
        found = {name: percentiles_ms(getattr(times[way.name], name)) for name in direct}
        added = found["chunks"]["p95"] - direct["chunks"]["p95"]
        rows.append(
            (
                way.name, len(times[way.name].chunks), *_halves(found["chunks"]), *_halves(found["ends"]),
                "" if way.name == _DIRECT else f"{added:+.0f}",
            )
        )  # fmt: skip
    header = ("way", "texts", "text p50", "text p95, ms", "last text p50", "last text p95, ms", "added at p95, ms")
    notes = f"accepted: at most {_ADDED_LIMIT_MS:g} ms added at p95. Resampling from 24 kHz holds back up to 36 ms:"
    return f"{markdown_table(header, rows, left=1)}\n\n{notes} some chunks are complete with the next part only"


def _pauses(times: dict[str, Times], silence_ms: int, chunk_ms: float) -> str:
    """The table of final texts behind pauses."""
    rows = [(way.name, len(times[way.name].pauses), *_halves(percentiles_ms(times[way.name].pauses))) for way in WAYS]
    limit_ms = silence_ms + chunk_ms + _FINAL_LIMIT_MS
    header = ("way", "final texts", "after the last word p50", "p95, ms")
    return f"{markdown_table(header, rows, left=1)}\n\naccepted: at most {limit_ms:g} ms at p95"


def _halves(found: dict[str, float]) -> tuple[str, str]:
    return f"{found['p50']:.0f}", f"{found['p95']:.0f}"
