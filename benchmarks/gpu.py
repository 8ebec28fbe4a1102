"""Measures a GPU with random weights: encoder step, searches, and real-time streams in a server.

    python -m benchmarks.gpu encoder|searches|server --json FILE [--device cuda] [--tiny] ...

Each measurement is a line of FILE at once. `--tiny --device cpu` shows that a benchmark runs; its times mean nothing.
docs/gpu.md says how to run all of them.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import time_interleaved
from benchmarks.papers.runner import Streams, entries_of, measured
from benchmarks.penstock_decoders import penstock_systems
from benchmarks.random_models import ENCODERS, KINDS, RandomEncoder, TransducerSizes, write_random_bundle
from benchmarks.systems import CHUNKS, Selection, decoding_errors, random_workload, split_chunks
from penstock.encoder.encoder import TORCH, StreamingEncoder
from penstock.encoder.precision import FLOAT16, FLOAT32, PRECISIONS, number_type, prepare_precision
from penstock.errors import PenstockError
from penstock.kernels.capability import FUSED
from penstock.model.config import AttentionContext
from penstock.runtime import check_device, check_device_works, prepare_process
from penstock.serving.launch import LOOPBACK, ServerOptions
from penstock.serving.model_repository import find_model_repository
from penstock.serving.server import TritonServer
from penstock.serving.triton_install import find_triton

LEFT, RIGHTS = 56, (0, 3, 13)
BUCKETS, BATCHES, DECODERS, BEAM = (64, 128, 256, 512, 1024), (1, 64, 256), ("label-looping", "boosted", "alsd"), 6
STREAMS, LATE_SHARE = (250, 500, 1000, 2000, 4000), 0.001
"""Streams of the trials, until one is late: more than this share of its chunks, each done a chunk after it was due."""
_STREAMS_PER_PLAYER, _MAX_PLAYERS, _TICK_S, _WARM_UP_S, _ANSWERS_S = 400, 6, 0.008, 2.0, 10.0
_OUTPUTS = ("TEXT", "ROW", "WORDS", "WORD_START_MS", "WORD_END_MS", "LIST_COUNTS", "ERROR_ROWS", "ERRORS")
_RATE_HZ, _START, _END, _NO_OPTIONS = 16_000, 1, 2, -1


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
        except (OSError, ImportError, PenstockError, *decoding_errors()) as error:
            self.add(name, case, error=f"{type(error).__name__}: {str(error)[:500]}")
            check_device_works(self._device, error)


def measure_encoder(lines: Lines, chosen: argparse.Namespace, case: dict, context: AttentionContext) -> None:
    """The step of 24 layers of width 1024 with full caches, eager and (on a GPU) captured."""
    precision, engine, is_cuda = case["precision"], case["engine"], chosen.device.startswith("cuda")
    if engine == FUSED and (not is_cuda or number_type(precision, chosen.device) == torch.float32):
        return  # there are no such kernels
    size, buckets, repeats = ("small", (1, 2), 1) if chosen.tiny else ("xlarge", BUCKETS, 8)
    device, most, frames = chosen.device, max(buckets), 8 * context.chunk_encoder_frames
    prepare_precision(precision, device)
    source = RandomEncoder(ENCODERS[size], context, device=device)
    model = StreamingEncoder(source, context, most, device, number_type(precision, device), engine)
    model.state.kv_pages.normal_()
    model.state.conv_tails.normal_()
    model.state.chunks_seen.fill_(10 * model.state.pages_per_slot)
    slots, valid = torch.arange(most, device=device), torch.full((most,), frames, device=device)
    inputs = (slots, source.mel(1, most, frames)[0], valid)
    for rows in buckets:
        tasks = {"eager": partial(model.step, *(each[:rows] for each in inputs))}
        if is_cuda:
            tasks["captured"] = captured(tasks["eager"])
        for launch, seconds in time_interleaved(tasks, repeats, 3, device).items():
            lines.add("encoder step", {**case, "rows": rows, "launch": launch}, ms=1e3 * statistics.median(seconds))


def captured(step: Callable[[], object]) -> Callable[[], object]:
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


def measure_searches(lines: Lines, chosen: argparse.Namespace, case: dict, context: AttentionContext) -> None:
    """A chunk of greedy, boosted and beam search, in every mode of CUDA graphs and with both kinds of kernels."""
    size, batches, count, repeats = ("small", (1, 2), 2, 1) if chosen.tiny else ("large", BATCHES, 12, 3)
    device, frames = chosen.device, context.chunk_encoder_frames
    workload = random_workload(case["kind"], size, max(batches), 0.08 * frames * count, device)
    kernels, began_s = (TORCH, FUSED) if device.startswith("cuda") else (TORCH,), time.perf_counter()
    selection = Selection([case["decoder"]], [BEAM], (CHUNKS,), device, max(batches), frames, kernels)
    systems = list(penstock_systems(workload.checkpoint, selection))
    lines.add("search set-up", case, seconds=time.perf_counter() - began_s)  # all captures
    for rows in batches:
        chunks = split_chunks(workload.encoded[:rows], frames)
        entries, missing = entries_of(systems, {}, [chunks])
        for row in [*measured(entries, Streams(rows * workload.stream_s), repeats, device), *missing]:
            taken = {name: row[name] for name in ("labels", "unavailable") if name in row}
            taken |= {"ms": 1e3 * statistics.median(row["rounds_s"]) / len(chunks)} if "rounds_s" in row else {}
            lines.add("search chunk", {**case, "rows": rows, "variant": row["variant"]}, **taken)


def measure_server(lines: Lines, chosen: argparse.Namespace, case: dict, context: AttentionContext) -> None:
    """Real-time streams in a server, more of them until chunks are late; they have no labels."""
    size, widths = ("small", (144, 64, 128)) if chosen.tiny else ("xlarge", (1024, 640, 1024))
    with tempfile.TemporaryDirectory() as folder:
        model = write_random_bundle(Path(folder), size, TransducerSizes(*widths), context, chosen.device)
        values = (model, f"{context.left},{context.right}", case["precision"], chosen.device, max(chosen.streams))
        names = (f"PENSTOCK_{name}" for name in ("MODEL", "CONTEXT", "PRECISION", "DEVICE", "MAX_STREAMS"))
        environment = dict(zip(names, map(str, values), strict=True))
        with TritonServer(find_triton(), ServerOptions(find_model_repository(), environment=environment)) as server:
            for count in chosen.streams:
                found = run_trial(server, 1280 * context.chunk_encoder_frames, count, chosen.trial_s)
                lines.add("server", {**case, "streams": count}, **found)
                if found["late"] + found["unanswered"] > LATE_SHARE * found["chunks"]:
                    break
            server.stop(drain=False)


def run_trial(server: TritonServer, chunk_samples: int, streams: int, seconds: float) -> dict:
    """Sends each chunk when it is due, streams staggered over a chunk; the first 2 s and the ends do not count."""
    players = max(1, min(_MAX_PLAYERS, streams // _STREAMS_PER_PLAYER))
    url, begins_s = f"{LOOPBACK}:{server.ports.grpc}", time.time() + 3.0 + 0.5 * players
    shares = map(len, np.array_split(np.arange(streams), players))
    with ProcessPoolExecutor(players, get_context("spawn")) as pool:  # gRPC does not survive a fork
        found = list(pool.map(partial(play, url, chunk_samples, seconds, begins_s), shares))
    waits_s = np.concatenate([waits_s for waits_s, _ in found])
    median_s, p99_s = np.quantile(waits_s, (0.5, 0.99)).tolist() if len(waits_s) else (None, None)
    late, unanswered = int(np.sum(waits_s > chunk_samples / _RATE_HZ)), sum(lost for _, lost in found)
    return {"chunks": len(waits_s), "unanswered": unanswered, "late": late, "median_s": median_s, "p99_s": p99_s}


def play(url: str, chunk_samples: int, seconds: float, begins_s: float, streams: int) -> tuple[np.ndarray, int]:
    """Sends the streams of one process from `begins_s` on; returns times [n], and the chunks without a reply."""
    import tritonclient.grpc as triton  # the other benchmarks do without

    chunk_s, plays = chunk_samples / _RATE_HZ, max(1, round(seconds * _RATE_HZ / chunk_samples))
    noise = (1600 * np.random.default_rng(0).standard_normal(chunk_samples)).astype(np.int16)
    due_s = begins_s + np.add.outer(np.arange(plays) * chunk_s, np.arange(streams) * chunk_s / streams).ravel()
    sent, waits_s = dict[str, np.ndarray](), [np.empty(0)]

    def note(result: Any, error: Exception | None) -> None:
        if result is None:
            return  # counted as unanswered
        own_s, now_s = sent.pop(result.get_response().id), time.time()
        is_counted = (own_s > begins_s + _WARM_UP_S) & (own_s < begins_s + (plays - 1) * chunk_s - 1e-6)
        waits_s.append(now_s - own_s[is_counted])

    own, outputs = {"client": f"player-{os.getpid()}"}, [triton.InferRequestedOutput(output) for output in _OUTPUTS]
    with triton.InferenceServerClient(url) as client:
        client.start_stream(note)
        at, no_audio = 0, np.zeros((1, 0), np.float32)
        while at < len(due_s):
            end = min(int(np.searchsorted(due_s, time.time(), "right")), at + streams)
            if end > at:
                places = np.arange(at, end)
                flags = _START * (places < streams) + _END * (places >= len(due_s) - streams)
                columns = np.broadcast_arrays(places % streams + 1, chunk_samples, flags, _NO_OPTIONS)
                rows, audio = np.stack(columns, 1)[None].astype(np.int64), np.tile(noise, end - at)[None]
                inputs = [triton.InferInput("ROWS", list(rows.shape), "INT64").set_data_from_numpy(rows)]
                inputs += [triton.InferInput("PCM", list(audio.shape), "INT16").set_data_from_numpy(audio)]
                inputs += [triton.InferInput("AUDIO", [1, 0], "FP32").set_data_from_numpy(no_audio)]
                sent[str(at)] = due_s[at:end]
                client.async_stream_infer("asr_batch", inputs, outputs=outputs, request_id=str(at), parameters=own)
                at = end
            time.sleep(_TICK_S)
        limit_s = time.time() + _ANSWERS_S
        while sent and time.time() < limit_s:
            time.sleep(_TICK_S)
        unanswered = sum(map(len, sent.values()))
        client.stop_stream(cancel_requests=True)
    return np.concatenate(waits_s), unanswered


BENCHMARKS: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "encoder": (measure_encoder, ("precision", "engine")),
    "searches": (measure_searches, ("kind", "decoder")),
    "server": (measure_server, ("precision",)),
}
"""Each with the fields of its cases."""


def main(arguments: list[str] | None = None) -> None:
    """Command line. Raises DeviceLostError after it is recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=BENCHMARKS)
    add = parser.add_argument
    add("--json", type=Path, required=True, metavar="FILE", help="file of JSON lines, appended to")
    add("--device", default="cuda", help="cuda or cpu (cuda)")
    add("--tiny", action="store_true", help="small sizes: whether it runs at all")
    add("--precisions", nargs="+", choices=PRECISIONS, default=(FLOAT16, FLOAT32), help="of the encoder")
    add("--rights", nargs="+", type=int, metavar="N", default=RIGHTS, help="frames of right context (0 3 13)")
    add("--streams", nargs="+", type=int, metavar="N", default=STREAMS, help="of the trials, ascending")
    add("--trial-s", metavar="N", type=float, default=30.0, help="seconds of each trial (30)")
    chosen = parser.parse_args(arguments)
    check_device(chosen.device, "--device")
    if chosen.tiny:
        chosen.rights, chosen.precisions, chosen.streams, chosen.trial_s = chosen.rights[:1], [FLOAT32], [2], 4.0
    prepare_process(1)
    lines, (measure, fields) = Lines(chosen.json, chosen.device), BENCHMARKS[chosen.benchmark]
    every = {"precision": chosen.precisions, "engine": (TORCH, FUSED), "kind": KINDS, "decoder": DECODERS}
    for right, *values in product(chosen.rights, *(every[field] for field in fields)):
        context = AttentionContext(LEFT, right)
        case = {"context": list(context), **dict(zip(fields, values, strict=True))}
        lines.attempt(chosen.benchmark, case, partial(measure, lines, chosen, case, context))


if __name__ == "__main__":
    main()
