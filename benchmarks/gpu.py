"""Measures a GPU with random weights: encoder step, searches, real-time streams in one process and in a server.

    python -m benchmarks.gpu encoder|searches|streams|server --json FILE [--device cuda] [--precisions N,...]
        [--rights N,...] [--streams N,...] [--trial-s N] [--tiny]

Each measurement is a line of FILE as soon as it is made, so that a run that ends early keeps what it has. `--tiny
--device cpu` shows that a benchmark runs; its times mean nothing. docs/gpu.md says how to run all of them.
"""

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.encoder import encoder_steps, nemo_encoder_steps
from benchmarks.measure import time_interleaved
from benchmarks.papers.runner import Streams, entries_of, measured
from benchmarks.penstock_decoders import penstock_systems
from benchmarks.random_models import KINDS, TransducerSizes, write_random_bundle
from benchmarks.systems import (
    CHUNKS,
    NEMO,
    Selection,
    System,
    Unavailable,
    Workload,
    decoding_errors,
    random_workload,
    split_chunks,
)
from penstock.encoder.encoder import TORCH
from penstock.encoder.precision import AUTO, FLOAT16, INT8, PRECISIONS, TF32, number_type, prepare_precision
from penstock.errors import DeviceLostError, StreamError
from penstock.kernels.capability import FUSED
from penstock.model.config import AttentionContext
from penstock.pipeline.stages.audio_rows import AudioRequest
from penstock.pipeline.stages.encoder import EncodedRows
from penstock.recognizer import StreamingRecognizer
from penstock.runtime import check_device, check_device_works, freeze_loaded, prepare_process

LEFT, RIGHTS = 56, (0, 3, 13)
BUCKETS = (64, 128, 256, 512, 1024)
BATCHES, DECODERS, BEAM = (1, 64, 256), ("label-looping", "boosted", "alsd"), 6
STREAMS, LATE_SHARE = (250, 500, 1000, 2000, 4000), 0.001
"""Streams of the trials, until one is late: more than this share of its chunks, each done a chunk after it was due."""
_FACTOR, _ENCODER_FRAME_S, _FRAMES = 8, 0.08, 1 << 18


class Lines:
    """A file of JSON lines: a name, the case, and values or an error."""

    def __init__(self, path: Path, device: str):
        self._path, self._device = path, torch.device(device)

    def add(self, name: str, case: dict, **values: object) -> None:
        """Appends and prints a line."""
        line = json.dumps({"name": name, **case, **values})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)

    def attempt(self, name: str, case: dict, task: Callable[[], None]) -> None:
        """Runs a task and records its error, if any. DeviceLostError, after it is recorded, ends the process."""
        try:
            task()
        except (OSError, ImportError, StreamError, *decoding_errors()) as error:
            self.add(name, case, error=f"{type(error).__name__}: {str(error)[:500]}")
            check_device_works(self._device, error)


class Sizes(NamedTuple):
    """What the command line chooses."""

    device: str
    is_tiny: bool
    precisions: Sequence[str]
    """Those that the encoder computes in."""
    rights: Sequence[int]
    """Frames of right context."""
    counts: Sequence[int]
    """Numbers of streams in the trials."""
    trial_s: float


def encoder(lines: Lines, sizes: Sizes) -> None:
    """The step of 24 layers of width 1024 with full caches, eager and (on a GPU) captured; NeMo's if it is there."""
    device, is_tiny = sizes.device, sizes.is_tiny
    size, buckets, repeats = ("small", (1, 2), 1) if is_tiny else ("xlarge", BUCKETS, 8)
    for right in sizes.rights:
        context = AttentionContext(LEFT, right)
        for precision in sizes.precisions:
            is_16_bit = number_type(precision, device) != torch.float32
            engines = [TORCH]
            engines += [FUSED] if device.startswith("cuda") and is_16_bit else []
            engines += [NEMO] if find_spec("nemo") and precision == FLOAT16 else []  # the default on a GPU
            for engine in engines:
                case: dict = {"context": [LEFT, right], "precision": precision, "engine": engine}

                def task(context=context, case=case, precision=precision, engine=engine) -> None:
                    prepare_precision(precision, device)
                    dtype = number_type(precision, device)
                    made = (size, context, max(buckets), dtype, device)
                    step_of = nemo_encoder_steps(*made) if engine == NEMO else encoder_steps(*made, engine)
                    for rows in buckets:
                        tasks = {"eager": step_of(rows)}
                        if device.startswith("cuda") and engine != NEMO:  # it has no captured step
                            tasks["captured"] = _captured(tasks["eager"])
                        for launch, seconds in time_interleaved(tasks, repeats, 3, device).items():
                            ms = 1e3 * statistics.median(seconds)
                            lines.add("encoder step", {**case, "rows": rows, "launch": launch}, ms=ms)

                lines.attempt("encoder step", case, task)


def _captured(step: Callable[[], object]) -> Callable[[], object]:
    """The step as a graph, after it has run on the stream of the capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def searches(lines: Lines, sizes: Sizes) -> None:
    """Greedy, boosted and beam search per chunk, in every mode of CUDA graphs and with both kinds of kernels."""
    device, is_tiny = sizes.device, sizes.is_tiny
    batches, chunks, repeats = ((1, 2), 2, 1) if is_tiny else (BATCHES, 12, 3)
    kernels = (TORCH, FUSED) if device.startswith("cuda") else (TORCH,)
    for right in sizes.rights:
        context, size = AttentionContext(LEFT, right), "small" if is_tiny else "large"
        seconds = _ENCODER_FRAME_S * context.chunk_encoder_frames * chunks
        for kind in KINDS:
            workload = random_workload(kind, size, max(batches), seconds, context, device)
            for decoder in DECODERS:
                case = {"kind": kind, "context": [LEFT, right], "decoder": decoder}

                def task(workload=workload, case=case, decoder=decoder) -> None:
                    frames = workload.context.chunk_encoder_frames
                    began_s = time.perf_counter()
                    selection = Selection([decoder], [BEAM], (CHUNKS,), device, max(batches), frames, kernels)
                    systems = list(penstock_systems(workload.checkpoint, selection))
                    lines.add("search set-up", case, seconds=time.perf_counter() - began_s)  # all captures
                    for rows in batches:
                        _add_chunk_times(lines, {**case, "rows": rows}, workload, systems, repeats)

                lines.attempt("search", case, task)


def _add_chunk_times(
    lines: Lines, case: dict, workload: Workload, systems: list[System | Unavailable], repeats: int
) -> None:
    """A line per search: the median time of a chunk."""
    chunks = split_chunks(workload.encoded[: case["rows"]], workload.context.chunk_encoder_frames)
    entries, unavailable = entries_of(systems, {}, [chunks])
    found = measured(entries, Streams(case["rows"] * workload.stream_s), repeats, str(workload.encoded.device))
    for row in [*found, *unavailable]:
        named = {**case, "variant": row["variant"]}
        if "unavailable" in row:
            lines.add("search chunk", named, unavailable=row["unavailable"])
        else:
            ms = 1e3 * statistics.median(row["rounds_s"]) / len(chunks)
            lines.add("search chunk", {**named, "labels": row["labels"]}, ms=ms)


def streams(lines: Lines, sizes: Sizes) -> None:
    """Real-time streams in one process, samples to words, without Triton: more of them until chunks are late."""
    for bundle, context, case in random_bundles(sizes):

        def task(bundle=bundle, context=context, case=case) -> None:
            forget_recognizers()
            most = max(sizes.counts)
            recognizer = StreamingRecognizer(str(bundle), context, most, sizes.device, precision=case["precision"])
            frames = torch.randn(_FRAMES, recognizer.config.encoder.d_model, device=sizes.device)
            decode_random_frames(recognizer, frames)
            freeze_loaded()  # as the server's stages do
            add_trials(lines, "real-time streams", case, sizes, partial(run_trial, recognizer))

        lines.attempt("real-time streams", case, task)


def random_bundles(sizes: Sizes) -> Iterator[tuple[Path, AttentionContext, dict]]:
    """A model of each context, once for each precision, and the case of its lines."""
    size, widths = ("small", (144, 64, 128)) if sizes.is_tiny else ("xlarge", (1024, 640, 1024))
    for right in sizes.rights:
        context = AttentionContext(LEFT, right)
        with tempfile.TemporaryDirectory() as folder:
            bundle = Path(folder) / "bundle"
            write_random_bundle(bundle, size, TransducerSizes(*widths), context, device=sizes.device)
            for precision in sizes.precisions[:1] if sizes.is_tiny else sizes.precisions:
                yield bundle, context, {"context": [LEFT, right], "precision": precision}


def add_trials(lines: Lines, name: str, case: dict, sizes: Sizes, trial: Callable[[int, float], dict]) -> None:
    """A line per number of streams, until chunks are late. trial: of a number of streams and seconds."""
    for count in sizes.counts:
        values = trial(count, sizes.trial_s)
        lines.add(name, {**case, "streams": count}, **values)
        if values["late"] + values.get("unanswered", 0) > LATE_SHARE * values["chunks"]:
            break


def decode_random_frames(recognizer: StreamingRecognizer, frames: torch.Tensor) -> None:
    """From now on the decoder gets `frames` [T, D], over and over, after each step of the encoder.

    A random encoder's own are all alike: no stream would have a label, or each a label in every frame.
    """
    process, at = recognizer._encoder.process_tickets, 0

    def process_tickets(*arguments, **options) -> list[EncodedRows | StreamError]:
        nonlocal at
        (answer,) = process(*arguments, **options)
        count = len(answer.encoded)
        at = at if at + count <= len(frames) else 0
        at += count
        return [answer._replace(encoded=frames[at - count : at])]

    recognizer._encoder.process_tickets = process_tickets


def forget_recognizers() -> None:
    """Frees what an earlier one holds: it is frozen, and refers to itself."""
    gc.unfreeze()
    gc.collect()


def run_trial(recognizer: StreamingRecognizer, streams: int, seconds: float) -> dict:
    """Sends each chunk when it is due, the streams staggered over one chunk; a call has at most one chunk of each."""
    samples = recognizer.chunk_samples()
    chunk_s = samples / recognizer.sample_rate_hz
    noise = 0.05 * np.random.default_rng(0).standard_normal(64 * samples).astype(np.float32)

    labels = 0

    def send(names: range | list[int], chunk: np.ndarray, is_start: bool = False, is_end: bool = False) -> None:
        nonlocal labels
        requests = [AudioRequest(f"{streams}-{name}", chunk, is_start, is_end) for name in names]
        for result in recognizer.process(requests):
            if isinstance(result, StreamError):
                raise result
            labels += len(result.tokens)

    send(range(streams), noise[:samples], is_start=True)  # all at once: warm-up
    plays = max(1, round(seconds / chunk_s))
    due_s = np.add.outer(np.arange(plays) * chunk_s, np.arange(streams) * chunk_s / streams).ravel()
    waits_s, calls, at = [], 0, 0
    began_s, cpu_s = time.perf_counter(), time.process_time()
    while at < len(due_s):
        now_s = time.perf_counter() - began_s
        end = min(int(np.searchsorted(due_s, now_s, "right")), at + streams)
        if end == at:
            time.sleep(due_s[at] - now_s)
            continue
        offset = calls % 63 * samples
        send([place % streams for place in range(at, end)], noise[offset : offset + samples])
        waits_s += (time.perf_counter() - began_s - due_s[at:end]).tolist()
        calls, at = calls + 1, end
    cpu_s = time.process_time() - cpu_s
    send(range(streams), noise[:0], is_end=True)
    return {
        "chunks": len(waits_s),
        "labels": labels,
        "late": sum(wait_s > chunk_s for wait_s in waits_s),
        "rows_per_call": len(waits_s) / calls,
        "host_us_per_chunk": 1e6 * cpu_s / len(waits_s),
        "median_ms": 1e3 * statistics.median(waits_s),
        "p99_ms": 1e3 * float(np.quantile(waits_s, 0.99)),
    }


def server(lines: Lines, sizes: Sizes) -> None:
    """Real-time streams in a server, as `streams` has them in one process; its streams have no labels."""
    try:
        from benchmarks.gpu_server import gpu_server, run_server_trial
    except ImportError as error:
        lines.add("server", {}, unavailable=str(error))
        return
    for bundle, context, case in random_bundles(sizes):
        chunk_samples = round(16_000 * _ENCODER_FRAME_S * context.chunk_encoder_frames)
        settings = {
            "CONTEXT": f"{context.left},{context.right}",
            "DEVICE": sizes.device,
            "PRECISION": case["precision"],
        }

        def task(bundle=bundle, case=case, settings=settings, chunk_samples=chunk_samples) -> None:
            with gpu_server(bundle, max(sizes.counts), settings) as running:
                add_trials(lines, "server", case, sizes, partial(run_server_trial, running, chunk_samples))

        lines.attempt("server", case, task)


BENCHMARKS = {"encoder": encoder, "searches": searches, "streams": streams, "server": server}


def _counts(text: str) -> list[int]:
    return [int(count) for count in text.split(",")]


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status, 3 if the device was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=BENCHMARKS)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="file of JSON lines, appended to")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (cuda)")
    parser.add_argument("--tiny", action="store_true", help="small sizes: whether it runs at all")
    names = {"metavar": "N,..."}
    parser.add_argument("--precisions", **names, type=lambda text: text.split(","), help="encoder precisions (all)")
    parser.add_argument("--rights", **names, type=_counts, default=RIGHTS, help="frames of right context (0,3,13)")
    parser.add_argument("--streams", **names, type=_counts, default=STREAMS, help="streams of the trials, ascending")
    parser.add_argument("--trial-s", metavar="N", type=float, default=30.0, help="seconds of each trial (30)")
    chosen = parser.parse_args(arguments)
    check_device(chosen.device, "--device")
    precisions = chosen.precisions or [
        name for name in PRECISIONS if name not in (AUTO, INT8) and (name != TF32 or chosen.device.startswith("cuda"))
    ]
    rights, counts, trial_s = chosen.rights, chosen.streams, chosen.trial_s
    if chosen.tiny:
        rights, counts = rights[:1], (2,)
        trial_s = 4.0 if chosen.benchmark == "server" else 0.4  # a server's first 2 s are left out
    sizes = Sizes(chosen.device, chosen.tiny, precisions, rights, counts, trial_s)
    prepare_process(1)
    try:
        BENCHMARKS[chosen.benchmark](Lines(chosen.json, chosen.device), sizes)
    except DeviceLostError as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
