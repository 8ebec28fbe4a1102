"""Fault trials of graceful restarts under live streams: every word comes once, or an error says where the text ends."""

import asyncio
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from threading import Semaphore

import numpy as np

from loadtest.fresh_gateway import RunningGateway, fresh_gateway
from loadtest.gateway_clients import CONNECTION_ERRORS
from penstock.serving.server import TritonServer
from penstock.serving.triton_install import find_triton
from penstock_client import Client, ClientError, ConnectionOptions, Transcript
from trials.faults.server import make_options
from trials.server.gateway_client import KSERVE, REALTIME, RIVA, live_texts
from trials.server.recordings import Recording
from trials.server.resources import Figures
from trials.server.running import RunningServer, server_environment

_RATE_HZ = 16_000
_RECONNECT_S = 900
"""A busy machine takes minutes to start a server."""
_UNSETTLED_WORDS = 2
"""At the end of a text that was cut short."""


def restarted_server(model: Path, recordings: list[Recording], count: int = 10) -> Figures:
    """A server stops gracefully and starts again under direct clients that reconnect: each word once."""
    samples = np.concatenate([recording.samples for recording in recordings])
    options = replace(make_options(model), environment=server_environment(model, count + 2, idle_s=30.0))
    with TritonServer(find_triton(), options) as server, ThreadPoolExecutor(count) as pool:
        ports, going = server.ports, Semaphore(0)
        addresses = [(f"127.0.0.1:{ports.grpc}", "grpc"), (f"127.0.0.1:{ports.http}", "http")]
        undisturbed = [_words(_transcribe(*address, samples, Semaphore(0))) for address in addresses]
        jobs = [pool.submit(_transcribe, *address, samples, going) for address in islice(cycle(addresses), count)]
        for _ in jobs:
            assert going.acquire(timeout=120), "not all streams have had a result"
        stopped_s = time.monotonic()
        server.stop()
        server.start()
        server.wait_ready()
        gap_s = time.monotonic() - stopped_s
        transcripts = [job.result() for job in jobs]
    for transcript, expected in zip(transcripts, cycle(undisturbed), strict=False):
        assert transcript.is_complete
        assert _words(transcript) == expected, (_words(transcript), expected)
    return {"streams": count, "words": sum(len(transcript.words) for transcript in transcripts), "restart_s": gap_s}


def restarted_gateway(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """A gateway stops under streams of each live protocol: each gets its text so far, once, and then an error."""
    samples = np.tile(np.round(np.concatenate([one.samples for one in recordings]) * 32767).astype(np.int16), 4)
    kinds = list(islice(cycle((RIVA, REALTIME, KSERVE)), count))
    with _gateway(server) as gateway:
        expected = asyncio.run(_text(gateway, RIVA, samples)).split()
    with _gateway(server) as gateway:
        texts = asyncio.run(_texts_until_stopped(gateway, kinds, samples))
    for kind, text in zip(kinds, texts, strict=True):
        words = text.split()
        settled = max(0, len(words) - _UNSETTLED_WORDS)
        assert settled and words[:settled] == expected[:settled], (kind, text)
    return {"streams": count, "words": sum(len(text.split()) for text in texts)}


def _gateway(server: RunningServer):
    return fresh_gateway(server.url("grpc"), "--endpoint-silence-ms", "0", "--timeout-s", "60", "--drain-seconds", "3")


def _transcribe(address: str, protocol: str, samples: np.ndarray, going: Semaphore) -> Transcript:
    """Sends at the pace of speech; `going` is released with the first result."""
    times = ConnectionOptions(reconnect_s=_RECONNECT_S)
    with Client(address, protocol, timeout_s=60, connection_options=times) as client, client.open_stream() as stream:
        is_going = False
        for start in range(0, len(samples), _RATE_HZ // 10):
            stream.send(samples[start : start + _RATE_HZ // 10])
            if stream.poll(0.1) and not is_going:
                is_going = True
                going.release()
        stream.finish()
        list(stream)
        return stream.transcript


def _words(transcript: Transcript) -> list[tuple[str, int, int]]:
    return [(word.text, word.start_ms, word.end_ms) for word in transcript.words]


async def _texts_until_stopped(gateway: RunningGateway, kinds: list[str], samples: np.ndarray) -> list[str]:
    """The last text of each stream; the gateway is stopped once all have words."""
    going = [asyncio.Event() for _ in kinds]
    jobs = [asyncio.create_task(_text(gateway, kind, samples, event)) for kind, event in zip(kinds, going, strict=True)]
    await asyncio.wait_for(asyncio.gather(*(event.wait() for event in going)), 120)
    os.kill(gateway.process_id, signal.SIGTERM)
    return list(await asyncio.wait_for(asyncio.gather(*jobs), 120))


async def _text(gateway: RunningGateway, kind: str, samples: np.ndarray, going: asyncio.Event | None = None) -> str:
    """The newest text of a stream. With `going`, set with its first word, it must end with an error."""
    text = ""
    try:
        async with aclosing(live_texts(gateway, kind, samples)) as texts:
            async for found in texts:
                text = found.text or text
                if going is not None and text:
                    going.set()
    except (ClientError, *CONNECTION_ERRORS) as error:
        assert going is not None and "STREAM_LOST" in str(error).upper(), error
        return text
    assert going is None, f"the stream of {kind} ended without an error"
    return text
