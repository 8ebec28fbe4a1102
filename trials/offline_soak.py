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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import tritonclient.grpc as triton

from benchmarks.random_models import TransducerSizes, write_random_bundle
from penstock.model.bundle import Checkpoint
from penstock.pipeline.memory.server_memory import audio_bytes_per_s
from penstock.reporting import commit, date_utc, describe_hardware, write_report
from penstock.serving.health import probe
from penstock.serving.information import server_information
from penstock.serving.launch import LOOPBACK, ServerOptions
from penstock.serving.model_repository import find_model_repository
from penstock.serving.server import TritonServer
from penstock.serving.settings import Settings
from penstock.serving.triton_install import find_triton

_ENCODERS = {512: "large", 1024: "xlarge"}
_MEMORY, _RATIO, _FREED = "peak GB per hour of audio", "ratio of p95", "memory freed, s"
_GB_PER_HOUR = 0.6 / 512
"""Limit of the memory, for one number of the width."""
_LIMITS = {_RATIO: 3.0, _FREED: 1.0}
_RATE_HZ, _PART = 16_000, 30 * 16_000
_NO_SAMPLES = np.zeros(0, np.float32)
_BEGUN = 0.1
"""Share of the long file's work that is done before the short ones come: beyond the subsampling and a layer."""
_TIMEOUT_S, _PROBE_PAUSE_S, _MEMORY_PAUSE_S = 600.0, 0.5, 0.02


class _Memory(threading.Thread):
    """Resident memory of the server's processes, read all the time."""

    def __init__(self, process_id: int):
        super().__init__(daemon=True)
        server = psutil.Process(process_id)
        self._processes = [server, *server.children(recursive=True)]
        self._is_over = threading.Event()
        self.peak = 0

    def now(self) -> int:
        """Bytes without those that processes share."""
        found = [process.memory_info() for process in self._processes]
        return sum(each.rss - each.shared for each in found)

    def run(self) -> None:
        while not self._is_over.wait(_MEMORY_PAUSE_S):
            self.peak = max(self.peak, self.now())

    def __enter__(self) -> "_Memory":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()


class _File:
    """A file's requests and polls over its own connection."""

    def __init__(self, url: str, name: str):
        self._client, self._name = triton.InferenceServerClient(url), name
        self._outputs = [triton.InferRequestedOutput(name) for name in ("IS_FINAL", "AUDIO_PROCESSED")]

    def send(self, samples: np.ndarray = _NO_SAMPLES, start: bool = False, end: bool = False) -> tuple[bool, float]:
        """Sends a request or a poll; returns IS_FINAL and AUDIO_PROCESSED."""
        audio = triton.InferInput("AUDIO", [1, len(samples)], "FP32")
        audio.set_data_from_numpy(samples[None])
        reply = self._client.infer(
            "asr", [audio], outputs=self._outputs, sequence_id=self._name, sequence_start=start, sequence_end=end,
            client_timeout=_TIMEOUT_S,
        )  # fmt: skip
        return bool(reply.as_numpy("IS_FINAL")[0, 0]), float(reply.as_numpy("AUDIO_PROCESSED")[0, 0])

    def upload(self, audio: np.ndarray, seconds: int) -> tuple[bool, float]:
        """Sends a file, which repeats `audio`; returns the reply to its end."""
        sent = 0
        while True:
            part = audio[: min(_PART, seconds * _RATE_HZ - sent)]
            is_last = sent + len(part) == seconds * _RATE_HZ
            reply = self.send(part, not sent, is_last)
            sent += len(part)
            if is_last:
                return reply

    def finish(self, reply: tuple[bool, float]) -> None:
        """Polls until the last reply."""
        while not reply[0]:
            reply = self.send()


def _short_files(url: str, audio: np.ndarray, count: int, seconds: int, tag: str) -> list[float]:
    """Seconds from the first request to the last reply of files that come at the same time."""

    def transcribe(number: int) -> float:
        file, begin = _File(url, f"{tag}-{number}"), time.monotonic()
        file.finish(file.upload(audio, seconds))
        return time.monotonic() - begin

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(transcribe, range(count)))


def _rounds(url: str, audio: np.ndarray, chosen: argparse.Namespace, tag: str) -> list[float]:
    numbers = range(chosen.rounds)
    return [s for n in numbers for s in _short_files(url, audio, chosen.files, chosen.seconds, f"{tag}-{n}")]


@contextmanager
def _probes(url: str) -> Iterator[list[float]]:
    """Probes all the time; the list gets the seconds of each, infinity for a failed one."""
    found: list[float] = []
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(_PROBE_PAUSE_S):
            begin = time.monotonic()
            is_healthy = probe(url, _TIMEOUT_S).is_healthy
            found.append(time.monotonic() - begin if is_healthy else float("inf"))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def _p95(seconds: list[float]) -> float:
    return float(np.percentile(seconds, 95))


def measure(server: TritonServer, chosen: argparse.Namespace) -> dict[str, float]:
    """The figures of one run."""
    url, http = (f"{LOOPBACK}:{port}" for port in (server.ports.grpc, server.ports.http))
    audio = (0.1 * np.random.default_rng(0).standard_normal(_PART)).astype(np.float32)
    _short_files(url, audio, 2, chosen.seconds, "warm-up")
    with _probes(http) as quiet:
        alone = _rounds(url, audio, chosen, "alone")
    with _Memory(server.process_id) as memory:
        before = memory.now()
        long = _File(url, "long")
        last, processed = threading.Event(), [0.0]
        reply = long.upload(audio, 60 * chosen.minutes)

        def poll() -> None:
            found = reply
            while not last.is_set() and not found[0]:
                found = long.send()
                processed[0] = found[1]

        poller = threading.Thread(target=poll)
        poller.start()
        while processed[0] < _BEGUN * 60 * chosen.minutes:  # all its memory is in use
            time.sleep(_MEMORY_PAUSE_S)
        with _probes(http) as busy:
            beside = _rounds(url, audio, chosen, "beside")
        last.set()
        poller.join()
        held, share = memory.now(), processed[0] / (60 * chosen.minutes)
        begin = time.monotonic()
        long.send(end=True)
        cancelled_s = time.monotonic() - begin
        while memory.now() - before > 0.1 * (held - before) and time.monotonic() - begin < _TIMEOUT_S:
            time.sleep(_MEMORY_PAUSE_S)
        freed_s = time.monotonic() - begin
    hours = (60 * chosen.minutes + chosen.files * chosen.seconds) / 3600
    return {
        _MEMORY: (memory.peak - before) / 1e9 / hours,
        "GB per hour that serve states": 3600 * audio_bytes_per_s(Checkpoint(chosen.model).config) / 1e9,
        "short files alone, p95 s": _p95(alone),
        "short files beside, p95 s": _p95(beside),
        _RATIO: _p95(beside) / _p95(alone),
        "long file done meanwhile": share,
        "probe alone, longest s": max(quiet, default=0.0),
        "probe beside, longest s": max(busy, default=0.0),
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
        environment = {"PENSTOCK_MODEL": str(chosen.model.absolute()), "PENSTOCK_MAX_STREAMS": str(chosen.files + 4)}
        found = Settings.from_environment(environment | {"PENSTOCK_DEVICE": "cpu"})
        information = server_information(found.checkpoint, None, found.decoding, found.max_streams, found.idle_limit_s)
        options = ServerOptions(find_model_repository(), environment=environment, information=information)
        with TritonServer(find_triton(), options) as server:
            figures = measure(server, chosen)
            server.stop(drain=False)
    about = f"{date_utc()}, commit {commit()}, {describe_hardware()}"
    print(f"{chosen.minutes} min beside {chosen.files} files of {chosen.seconds} s, {chosen.rounds} rounds; {about}")
    limits = _LIMITS | {_MEMORY: _GB_PER_HOUR * found.checkpoint.config.encoder.d_model}
    for name, value in figures.items():
        print(f"{name:<32} {value:.2f}" + (f", at most {limits[name]:.2f}" if name in limits else ""))
    if chosen.json:
        write_report(chosen.json, figures | {"about": about})
    return int(any(figures[name] > limit for name, limit in limits.items()))


if __name__ == "__main__":
    sys.exit(main())
