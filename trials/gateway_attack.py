"""`python -m trials.gateway_attack`: what a client may try against a gateway, beside a live stream of another key.

Prints a table with what the attacker got, the latency of the stream and the gateway's memory. The exit status is 1
where an answer is not one of the documented errors, or a limit is exceeded.
"""

import argparse
import asyncio
import hashlib
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from loadtest.gateway_clients import GatewayVoice, realtime_texts
from loadtest.locust_run import ServerPlan, fresh_server
from loadtest.options import BUNDLE, DEFAULT_RECORDINGS
from penstock.errors import PenstockError
from penstock.evaluation.manifest import read_manifest
from penstock.reporting import markdown_table
from penstock_common.audio.tracks import load
from penstock_common.log_lines import level_of
from trials.attacks import ATTACKER, ATTACKS, OTHER, Address, Outcomes, attack_in_process, probe, upload
from trials.server.gateway import RunningGateway, fresh_gateway

SAMPLE_RATE_HZ, PART_SAMPLES = 16_000, 1600
_KEYS = ((ATTACKER, 2), (OTHER, 8))
_POLL_S = 0.1
_START_S = 2.0
_MAX_RATIO, _MAX_UPLOAD_S, _MAX_MIB = 5.0, 1.0, 600
"""Limits of times to those without an attack, of an upload of the other key, and of the gateway's memory."""


class Measured(NamedTuple):
    """One row of the table."""

    name: str
    outcomes: Outcomes
    p95_ms: float
    text: str
    uploads_s: list[float]
    """The time of each upload of the other key, and of the probe after it."""
    peak_mib: float
    """The gateway with its decoders, shared memory once."""


async def trial(name: str, gateway: RunningGateway, samples: np.ndarray, seconds: float) -> Measured:
    """A live stream, with this attack beside it; "" for none."""
    loop, address = asyncio.get_running_loop(), (gateway.http, gateway.grpc)
    is_over = asyncio.Event()
    watching = asyncio.create_task(_peak_mib(gateway.process_id, is_over))
    uploading = asyncio.create_task(_uploads(address, is_over))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        await loop.run_in_executor(executor, os.getpid)  # it has started
        attacking = loop.run_in_executor(executor, attack_in_process, name, address, seconds + 2) if name else None
        latencies_s, text = await _latencies(gateway, samples[: round(seconds * SAMPLE_RATE_HZ)])
        outcomes = await attacking if attacking is not None else Counter[str]()
    is_over.set()
    uploads, uploads_s = await uploading
    return Measured(
        name, outcomes + uploads, 1000 * float(np.percentile(latencies_s, 95)), text, uploads_s, await watching
    )


async def _peak_mib(process_id: int, is_over: asyncio.Event) -> float:
    process, peak = psutil.Process(process_id), 0
    while not is_over.is_set():
        with suppress(psutil.NoSuchProcess):  # a decoder's fork has ended
            everything = (process, *process.children(recursive=True))
            peak = max(peak, sum(each.memory_full_info().pss for each in everything))
        await asyncio.sleep(_POLL_S)
    return peak / (1 << 20)


async def _uploads(address: Address, is_over: asyncio.Event) -> tuple[Outcomes, list[float]]:
    """Wrong outcomes of the other key, and the times of its uploads."""
    recording = next(iter(read_manifest(DEFAULT_RECORDINGS))).audio.read_bytes()
    outcomes, times_s = Counter[str](), []
    while not is_over.is_set():
        start_s = time.monotonic()
        statuses = await upload(address, recording), await probe(address)
        times_s.append(time.monotonic() - start_s)
        outcomes.update(f"{status} of the other key" for status in statuses if status != "200")
        await asyncio.sleep(_POLL_S)
    return outcomes, times_s


async def _latencies(gateway: RunningGateway, samples: np.ndarray) -> tuple[list[float], str]:
    """Seconds from the last audio of a chunk to its text, of a stream in real time, without its start; its text."""
    header = {"Authorization": f"Bearer {OTHER}"}
    voice = GatewayVoice(lambda parts: realtime_texts(gateway.http, parts, additional_headers=header))
    answers = []
    async with voice:
        start_s = time.monotonic()
        for i in range(0, len(samples), PART_SAMPLES):
            await voice.send(samples[i : i + PART_SAMPLES])
            answers += await voice.poll()
            await asyncio.sleep(max(0.0, start_s + (i + PART_SAMPLES) / SAMPLE_RATE_HZ - time.monotonic()))
        await voice.finish()
        while not voice.transcript.is_complete:
            answers += await voice.poll(1.0)
    latencies_s = [answer.round_trip_s for answer in answers if answer.audio_processed_s > _START_S]
    return latencies_s, voice.transcript.text


def samples_of(path: Path) -> np.ndarray:
    """A recording, its channels mixed."""
    return load(path, SAMPLE_RATE_HZ).tracks[0].samples


def speech(seconds: float) -> np.ndarray:
    """The repository's recordings, one after another."""
    samples = np.concatenate([samples_of(utterance.audio) for utterance in read_manifest(DEFAULT_RECORDINGS)])
    return np.tile(samples, int(seconds * SAMPLE_RATE_HZ / len(samples)) + 1)


def gateway_flags(folder: Path, keys: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Flags of a gateway with these keys, each with its streams; writes their file into the folder."""
    lines = [f"k{i} {hashlib.sha256(key.encode()).hexdigest()} {streams}\n" for i, (key, streams) in enumerate(keys)]
    path = folder / "keys"
    path.write_text("".join(lines))
    return "--keys", str(path), "--endpoint-silence-ms", "0"


def main(words: list[str] | None = None) -> int:
    """Runs the attacks; returns the exit status: 1 where a limit was exceeded, 2 where they could not run."""
    parser = argparse.ArgumentParser(prog="trials.gateway_attack", description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=15.0, metavar="S", help="time of each attack (15)")
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS), metavar="NAME", help="(all)")
    args = parser.parse_args(words)
    try:
        trials, errors = run(args.only, args.seconds)
    except PenstockError as error:
        print(f"gateway_attack: error: {error}", file=sys.stderr)
        return 2
    undisturbed = float(np.median([each.p95_ms for each in trials if not each.name]))
    upload_s = float(np.median([np.median(each.uploads_s) for each in trials if not each.name]))
    rows = [(each.name or "none", _shown(each.outcomes), f"{each.p95_ms:.0f} ms", f"{each.p95_ms / undisturbed:.2f}",
             f"{np.median(each.uploads_s) / upload_s:.2f}", f"{max(each.uploads_s):.2f} s", f"{each.peak_mib:.0f} MiB")
            for each in trials]  # fmt: skip
    print(markdown_table(("attack", "outcomes", "p95 of the other stream", "ratio", "ratio of the other's uploads",
                          "slowest", "gateway, peak"), rows))  # fmt: skip
    faults = [fault for each in trials for fault in _faults(each, trials[0].text, undisturbed, upload_s)]
    faults += [f"the gateway's log: {line[:200]}" for line in errors]
    print("\n".join(faults) or "passed")
    return 1 if faults else 0


def run(names: list[str], seconds: float) -> tuple[list[Measured], list[str]]:
    """The trials, and before and after them one without an attack; errors in the gateway's log."""
    samples = speech(seconds)
    with tempfile.TemporaryDirectory(prefix="penstock-attack-") as name, ExitStack() as stack:
        folder = Path(name)
        server = stack.enter_context(fresh_server(ServerPlan(BUNDLE, None, 16, 1)))
        flags = gateway_flags(folder, _KEYS)
        gateway = stack.enter_context(fresh_gateway(server.url, *flags, kept_log=folder / "log"))
        trials = [asyncio.run(trial(name, gateway, samples, seconds)) for name in ("", *names, "")]
        stack.close()
        lines = (folder / "log").read_text(encoding="utf-8").splitlines()
        return trials, [line for line in lines if level_of(line) in (None, "error")]


def _shown(outcomes: Outcomes) -> str:
    return ", ".join(f"{count} {name}" for name, count in outcomes.most_common()) or "-"


def _faults(each: Measured, text: str, undisturbed_ms: float, undisturbed_s: float) -> list[str]:
    """Faults of a trial; without an attack: the other stream's text and p95, and the median of the uploads."""
    wrong = sorted(set(each.outcomes) - ATTACKS[each.name].accepted) if each.name else []
    faults = [f"{each.name}: outcome {name}" for name in wrong]
    if each.p95_ms > _MAX_RATIO * undisturbed_ms:
        faults.append(f"{each.name}: p95 {each.p95_ms:.0f} ms; accepted: {_MAX_RATIO * undisturbed_ms:.0f} ms")
    if each.peak_mib > _MAX_MIB:
        faults.append(f"{each.name}: {each.peak_mib:.0f} MiB; accepted: {_MAX_MIB} MiB")
    median_s, slowest_s = float(np.median(each.uploads_s)), max(each.uploads_s)
    if slowest_s > _MAX_UPLOAD_S or median_s > _MAX_RATIO * undisturbed_s:
        faults.append(f"{each.name}: uploads of {median_s:.2f} s, the slowest {slowest_s:.2f} s")
    if each.text != text:
        faults.append(f"{each.name}: the other stream has another text")
    return faults


if __name__ == "__main__":
    sys.exit(main())
