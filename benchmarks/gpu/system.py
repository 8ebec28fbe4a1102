"""Real-time streams in one process: samples to words, staggered, until chunks are late.

The model has random weights: 24 encoder layers of width 1024 and an RNN-T. Triton Inference Server is not involved.
"""

import argparse
import contextlib
import itertools
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.gpu import predictions
from benchmarks.gpu.recorder import Recorder, run_program
from benchmarks.random_bundle import write_random_bundle
from benchmarks.random_models import TransducerSizes
from penstock.errors import StreamError
from penstock.model.config import AttentionContext
from penstock.pipeline.stages.features import AudioRequest
from penstock.recognizer import StreamingRecognizer

LEFT = 56
SIZES = ("xlarge", TransducerSizes(1024, 640, 1024))
TINY_SIZES = ("small", TransducerSizes(144, 64, 128))
"""Of the encoder, by name, and of predictor and joint."""
_TRIAL_S, _LAST_TRIAL_S = 15.0, 60.0
_FACTORS = (1.0, 1.5, 0.67)
"""Streams of the trials as factors of the prediction: the second after a pass, the third after a failure."""
_NOISE_S = 30.0
_TINY_STREAMS = 2


class Trial(NamedTuple):
    """What a trial found."""

    streams: int
    chunks: int
    late: int
    host_us_per_chunk: float
    """CPU time of the process per chunk; on a GPU it includes waits for the device, which keep the CPU busy."""
    batch: float
    """Mean chunks per call."""
    p99_ms: float
    """From a chunk's last sample to its result."""
    gpu_busy_percent: float | None

    @property
    def keeps_up(self) -> bool:
        """True if few enough chunks were late."""
        return self.late <= predictions.LATE_SHARE * self.chunks


def measure(recorder: Recorder, chosen: argparse.Namespace) -> None:
    """Trials in one context; the best number of streams again for a minute."""
    right = chosen.right
    predicted = None if chosen.tiny else predictions.STREAMS[right + 1]
    trial_s, last_s = (0.4, 0.4) if chosen.tiny else (_TRIAL_S, _LAST_TRIAL_S)
    context = AttentionContext(LEFT, right)
    case = {"context": f"[{LEFT},{right}]", "dtype": predictions.FP32}

    def everything() -> None:
        with tempfile.TemporaryDirectory() as folder:
            sizes = TINY_SIZES if chosen.tiny else SIZES
            bundle = write_random_bundle(Path(folder) / "bundle", *sizes, context)
            first = predicted or _TINY_STREAMS
            limit = round(max(_FACTORS) * first)
            recognizer = StreamingRecognizer(str(bundle), context, limit, chosen.device)
        found = []
        for factor in _FACTORS:
            if found and (factor > 1.0) != found[0].keeps_up:
                continue
            found.append(run_trial(recognizer, round(factor * first), trial_s, chosen.device))
            record(recorder, case, found[-1], trial_s)
        best = max((one.streams for one in found if one.keeps_up), default=min(one.streams for one in found))
        last = run_trial(recognizer, best, last_s, chosen.device)
        record(recorder, case, last, last_s)
        value = last.streams if last.keeps_up else 0
        recorder.add("streams that keep up", case, value, "streams", predicted, **last._asdict())

    recorder.attempt("real time", case, everything)


def record(recorder: Recorder, case: dict, trial: Trial, seconds: float) -> None:
    """One trial: its time per chunk on the host, and the rest beside it."""
    case = {**case, "streams": trial.streams, "seconds": seconds}
    recorder.add(
        "real time", case, trial.p99_ms, "ms at most for 99 % of the chunks", None,
        keeps_up=trial.keeps_up, **trial._asdict(),
    )  # fmt: skip


def run_trial(recognizer: StreamingRecognizer, streams: int, seconds: float, device: str) -> Trial:
    """Sends chunks when they are due, all streams staggered over a chunk; late: done more than a chunk after that."""
    chunk = recognizer.config.encoder_frame_samples * recognizer.context.chunk_encoder_frames
    chunk_s = chunk / recognizer.sample_rate_hz
    noise = np.random.default_rng(0).standard_normal(round(_NOISE_S * recognizer.sample_rate_hz)).astype(np.float32)
    noise *= 0.05
    # 1) every stream begins once, all at once: warm-up
    names = [f"{streams}-{number}" for number in range(streams)]
    _process(recognizer, [AudioRequest(name, noise[:chunk], True, False, {}, False) for name in names])
    # 2) chunks in the order in which they are due
    due = [(number / streams) * chunk_s for number in range(streams)]
    total = max(1, round(seconds / chunk_s))
    waits_s, calls, offsets = [], 0, itertools.cycle(range(chunk, len(noise) - chunk, chunk))
    queue = sorted((due[number] + play * chunk_s, number) for play in range(total) for number in range(streams))
    with _busy_percent(device) as busy:
        began_s, cpu_s, at = time.perf_counter(), time.process_time(), 0
        while at < len(queue):
            now_s = time.perf_counter() - began_s
            end = at
            while end < len(queue) and queue[end][0] <= now_s and end - at < streams:
                end += 1
            if end == at:
                time.sleep(max(0.0, queue[at][0] - now_s))
                continue
            # A stream that is behind has several chunks due: one per call.
            last = {}
            for place in range(at, end):
                if queue[place][1] in last:
                    end = place
                    break
                last[queue[place][1]] = place
            offset = next(offsets)
            samples = noise[offset : offset + chunk]
            _process(recognizer, [AudioRequest(names[number], samples, False, False, {}, False) for number in last])
            done_s = time.perf_counter() - began_s
            waits_s += [done_s - queue[place][0] for place in range(at, end)]
            calls, at = calls + 1, end
        cpu_s = time.process_time() - cpu_s
    # 3) the slots are free for the next trial
    silence = noise[:0]
    _process(recognizer, [AudioRequest(name, silence, False, True, {}, False) for name in names])
    return Trial(
        streams, len(waits_s), sum(wait_s > chunk_s for wait_s in waits_s), 1e6 * cpu_s / len(waits_s),
        len(waits_s) / calls, 1e3 * float(np.quantile(waits_s, 0.99)), busy(),
    )  # fmt: skip


def _process(recognizer: StreamingRecognizer, requests: list[AudioRequest]) -> None:
    for result in recognizer.process(requests):
        if isinstance(result, StreamError):
            raise result


@contextlib.contextmanager
def _busy_percent(device: str) -> Iterator:
    """Yields a function that returns the mean utilization of the GPU meanwhile; None without a way to read it."""
    found: list[float] = []
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(0.25):
            try:
                found.append(float(torch.cuda.utilization(device)))
            except Exception:  # noqa: BLE001 - of NVML and its Python package; the trial does not need it
                return

    thread = threading.Thread(target=sample, daemon=True)
    if torch.device(device).type == "cuda":
        thread.start()
    try:
        yield lambda: sum(found) / len(found) if found else None
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""

    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--right", type=int, choices=tuple(n - 1 for n in predictions.STREAMS), default=0)

    return run_program(arguments, "Real-time streams in one process.", measure, add_options)


if __name__ == "__main__":
    sys.exit(main())
