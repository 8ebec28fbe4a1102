"""One long file beside short ones and the health probe, on a server of an offline model.

    python -m trials.offline_soak --width 512 --minutes 180 --files 32 --seconds 15

It measures the short files alone, then beside the long one, cancels that, and prints latencies and memory. Exit status
1 if a figure is above its limit.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from benchmarks.random_models import TransducerSizes, write_random_bundle
from penstock.model.bundle import Checkpoint
from penstock.pipeline.memory.server_memory import audio_bytes_per_s
from penstock.reporting import commit, date_utc, describe_hardware, write_report
from penstock.serving.health import probe
from trials.server.raw_stream import RawStream, Reply
from trials.server.running import RunningServer, running_server
from trials.soak import Readings

_ENCODERS = {512: "large", 1024: "xlarge"}
_MEMORY, _RATIO, _FREED = "peak GB per hour of audio", "ratio of p95", "memory freed, s"
_GB_PER_HOUR = 0.6 / 512
"""Limit of the memory, for one number of the width."""
_LIMITS = {_RATIO: 3.0, _FREED: 1.0}
_RATE_HZ, _PART = 16_000, 30 * 16_000
_NO_SAMPLES = np.zeros(0, np.float32)
_BEGUN = 0.1
"""Share of the long file's work that is done before the short ones come: beyond the subsampling and a layer."""
_IDLE_S = 30.0
_TIMEOUT_S, _PROBE_PAUSE_S, _MEMORY_PAUSE_S = 600.0, 0.5, 0.02


def _memory_reader(process_id: int) -> Callable[[], int]:
    """What reads the resident bytes of a server's processes, without those that they share."""
    server = psutil.Process(process_id)
    processes = [server, *server.children(recursive=True)]

    def read() -> int:
        found = [process.memory_info() for process in processes]
        return sum(each.rss - each.shared for each in found)

    return read


def _probe_s(url: str) -> float:
    """Seconds of a probe of the server's health; infinity for one that failed."""
    begin = time.monotonic()
    is_healthy = probe(url, _TIMEOUT_S).is_healthy
    return time.monotonic() - begin if is_healthy else float("inf")


def _upload(file: RawStream, audio: np.ndarray, seconds: int) -> Reply:
    """Sends a file, which repeats `audio`; returns the reply to its end."""
    ends = [*range(_PART, seconds * _RATE_HZ, _PART), seconds * _RATE_HZ]
    for begin, end in zip([0, *ends], ends, strict=False):
        reply = file.send(audio[: end - begin], start=begin == 0, end=end == ends[-1])
    return reply


def _short_files(url: str, audio: np.ndarray, count: int, seconds: int, tag: str) -> list[float]:
    """Seconds from the first request to the last reply of files that come at the same time."""

    def transcribe(number: int) -> float:
        with RawStream(url, f"{tag}-{number}", timeout_s=_TIMEOUT_S) as file:
            begin = time.monotonic()
            reply = _upload(file, audio, seconds)
            while not reply.is_final:
                reply = file.send(_NO_SAMPLES)
            return time.monotonic() - begin

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(transcribe, range(count)))


def _rounds(url: str, audio: np.ndarray, chosen: argparse.Namespace, tag: str) -> list[float]:
    numbers = range(chosen.rounds)
    return [s for n in numbers for s in _short_files(url, audio, chosen.files, chosen.seconds, f"{tag}-{n}")]


def _p95(seconds: list[float]) -> float:
    return float(np.percentile(seconds, 95))


def measure(server: RunningServer, chosen: argparse.Namespace, bytes_per_s: float) -> dict[str, float]:
    """The figures of one run; bytes_per_s: memory of audio that the model states."""
    url, http = server.url("grpc"), server.url("http")
    audio = (0.1 * np.random.default_rng(0).standard_normal(_PART)).astype(np.float32)
    _short_files(url, audio, 2, chosen.seconds, "warm-up")
    with Readings(partial(_probe_s, http), _PROBE_PAUSE_S) as quiet:
        alone = _rounds(url, audio, chosen, "alone")
    now = _memory_reader(server.process_id)
    before = now()
    with Readings(now, _MEMORY_PAUSE_S) as memory, RawStream(url, "long", timeout_s=_TIMEOUT_S) as long:
        replies, is_over = [_upload(long, audio, 60 * chosen.minutes)], threading.Event()

        def poll() -> None:
            while not is_over.is_set() and not replies[-1].is_final:
                replies.append(long.send(_NO_SAMPLES))

        poller = threading.Thread(target=poll)
        poller.start()
        while replies[-1].processed_s < _BEGUN * 60 * chosen.minutes:  # all its memory is in use
            time.sleep(_MEMORY_PAUSE_S)
        with Readings(partial(_probe_s, http), _PROBE_PAUSE_S) as busy:
            beside = _rounds(url, audio, chosen, "beside")
        is_over.set()
        poller.join()
        held, share = now(), replies[-1].processed_s / (60 * chosen.minutes)
        begin = time.monotonic()
        long.send(_NO_SAMPLES, end=True)
        cancelled_s = time.monotonic() - begin
        while now() - before > 0.1 * (held - before) and time.monotonic() - begin < _TIMEOUT_S:
            time.sleep(_MEMORY_PAUSE_S)
        freed_s = time.monotonic() - begin
    hours = (60 * chosen.minutes + chosen.files * chosen.seconds) / 3600
    return {
        _MEMORY: (max(memory.readings) - before) / 1e9 / hours,
        "GB per hour that serve states": 3600 * bytes_per_s / 1e9,
        "short files alone, p95 s": _p95(alone),
        "short files beside, p95 s": _p95(beside),
        _RATIO: _p95(beside) / _p95(alone),
        "long file done meanwhile": share,
        "probe alone, longest s": max(quiet.readings, default=0.0),
        "probe beside, longest s": max(busy.readings, default=0.0),
        "reply to the cancellation, s": cancelled_s,
        _FREED: freed_s,
    }


def main() -> int:
    """Starts a server, measures, prints a table with limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="bundle of an offline model (random weights)")
    parser.add_argument("--width", type=int, choices=_ENCODERS, default=512, help="of random weights")
    parser.add_argument("--minutes", type=int, default=180, help="duration of the long file")
    parser.add_argument("--files", type=int, default=32, help="short files at the same time")
    parser.add_argument("--seconds", type=int, default=15, help="duration of each")
    parser.add_argument("--rounds", type=int, default=3, help="how often the short files come")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if chosen.model is None:
            sizes = TransducerSizes(chosen.width, 640, 1024)
            chosen.model = write_random_bundle(Path(folder) / "random", _ENCODERS[chosen.width], sizes, None)
        config = Checkpoint(chosen.model).config
        settings = {"PENSTOCK_CONTEXT": "", "PENSTOCK_QUEUE_DELAY_MS": ""}
        with contextmanager(running_server)(chosen.model.absolute(), chosen.files + 4, _IDLE_S, settings) as server:
            figures = measure(server, chosen, audio_bytes_per_s(config))
    about = f"{date_utc()}, commit {commit()}, {describe_hardware()}"
    print(f"{chosen.minutes} min beside {chosen.files} files of {chosen.seconds} s, {chosen.rounds} rounds; {about}")
    limits = _LIMITS | {_MEMORY: _GB_PER_HOUR * config.encoder.d_model}
    for name, value in figures.items():
        print(f"{name:<32} {value:.2f}" + (f", at most {limits[name]:.2f}" if name in limits else ""))
    if chosen.json:
        write_report(chosen.json, figures | {"about": about})
    return int(any(figures[name] > limit for name, limit in limits.items()))


if __name__ == "__main__":
    sys.exit(main())
