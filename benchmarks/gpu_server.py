"""Real-time streams through a real server: processes that send many of them in shared requests to `asr_batch`."""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import NamedTuple

import numpy as np
import psutil
import tritonclient.grpc as triton

from penstock.serving.information import server_information
from penstock.serving.launch import LOOPBACK, ServerOptions
from penstock.serving.model_repository import find_model_repository
from penstock.serving.server import TritonServer
from penstock.serving.settings import Settings
from penstock.serving.triton_install import find_triton

STAGES = ("features", "encoder", "decoder")
_OUTPUTS = ("TEXT", "ROW", "WORDS", "WORD_START_MS", "WORD_END_MS", "LIST_COUNTS", "ERROR_ROWS", "ERRORS")
_RATE_HZ, _START, _END, _NO_OPTIONS = 16_000, 1, 2, -1
_STREAMS_PER_PLAYER, _MAX_PLAYERS, _TICK_S, _WARM_UP_S, _ANSWERS_S = 400, 6, 0.008, 2.0, 10.0


class Load(NamedTuple):
    """What one process sends."""

    url: str
    name: str
    streams: int
    chunk_samples: int
    seconds: float
    begins_s: float
    """As `time.time`."""


@contextmanager
def gpu_server(bundle: Path, max_streams: int, settings: dict[str, str]) -> Iterator[TritonServer]:
    """A server on free ports; settings: of `penstock serve`, by the names of the variables without PENSTOCK_."""
    values = {"MODEL": str(bundle), "MAX_STREAMS": str(max_streams), **settings}
    environment = {f"PENSTOCK_{name}": value for name, value in values.items()}
    found = Settings.from_environment(environment)
    facts = server_information(found.checkpoint, found.context, found.decoding, found.max_streams, found.idle_limit_s)
    options = ServerOptions(find_model_repository(), environment=environment, information=facts)
    with TritonServer(find_triton(), options) as server:
        yield server
        server.stop(drain=False)


def run_server_trial(server: TritonServer, chunk_samples: int, streams: int, seconds: float) -> dict:
    """Sends each chunk when it is due, the streams staggered over one chunk.

    A chunk's time lasts until the reply to its request. Those of the first two seconds are left out, and the last ones,
    which end all streams at once.
    """
    players = max(1, min(_MAX_PLAYERS, streams // _STREAMS_PER_PLAYER))
    context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
    results = context.Queue()
    url, begins_s = f"{LOOPBACK}:{server.ports.grpc}", time.time() + 3.0 + 0.5 * players
    shares = [len(part) for part in np.array_split(np.arange(streams), players)]
    loads = [Load(url, f"player-{i}", share, chunk_samples, seconds, begins_s) for i, share in enumerate(shares)]
    processes = [context.Process(target=play, args=(load, results)) for load in loads]
    for process in processes:
        process.start()
    try:
        time.sleep(max(0.0, begins_s + 0.4 * seconds - time.time()))
        before, busy, before_s = _stage_seconds(server.process_id), _busy_seconds(url), time.monotonic()
        time.sleep(0.4 * seconds)
        after, busy_after, spent_s = _stage_seconds(server.process_id), _busy_seconds(url), time.monotonic() - before_s
        found = [results.get(timeout=seconds + 60) for _ in processes]
    finally:
        for process in processes:
            process.join(timeout=10)
            process.terminate()
    waits_s, unanswered = [wait_s for waits_s, _ in found for wait_s in waits_s], sum(lost for _, lost in found)
    return {
        "chunks": len(waits_s),
        "unanswered": unanswered,
        "late": sum(wait_s > chunk_samples / _RATE_HZ for wait_s in waits_s),
        "median_ms": 1e3 * float(np.quantile(waits_s, 0.5)) if waits_s else None,
        "p99_ms": 1e3 * float(np.quantile(waits_s, 0.99)) if waits_s else None,
        "cores": {name: round((after[name] - before[name]) / spent_s, 2) for name in after},
        "busy": {name: round((busy_after[name] - busy[name]) / spent_s, 2) for name in STAGES},
    }


def _stage_seconds(process_id: int) -> dict[str, float]:
    """CPU seconds of each stage's process so far, and of Triton's own."""
    server = psutil.Process(process_id)
    found = {"triton": sum(server.cpu_times()[:2])}
    for process in server.children(recursive=True):
        command = " ".join(process.cmdline())
        found |= {name: sum(process.cpu_times()[:2]) for name in STAGES if f"/{name}/" in command}
    return found


def _busy_seconds(url: str) -> dict[str, float]:
    """Seconds that each stage has worked on batches so far, waits for the GPU included."""
    with triton.InferenceServerClient(url) as client:
        models = client.get_inference_statistics(as_json=True)["model_stats"]
    busy = dict.fromkeys(STAGES, 0.0)
    for model in [model for model in models if model["name"] in STAGES]:
        for batch in model.get("batch_stats", ()):  # JSON leaves out what is 0
            parts = (batch[part].get("ns", 0) for part in batch if part.startswith("compute"))
            busy[model["name"]] += 1e-9 * sum(map(int, parts))
    return busy


def play(load: Load, results: "Queue[tuple[list[float], int]]") -> None:
    """Sends the streams of one process; puts the chunks' times and the number of chunks without a reply."""
    chunk_s, plays = load.chunk_samples / _RATE_HZ, max(1, round(load.seconds * _RATE_HZ / load.chunk_samples))
    noise = 1600 * np.random.default_rng(0).standard_normal(2 * load.chunk_samples)
    chunk = noise.clip(-32768, 32767).astype(np.int16)
    order = np.add.outer(np.arange(plays) * chunk_s, np.arange(load.streams) * chunk_s / load.streams).ravel()
    due_s, sent, waits_s = load.begins_s + order, {}, []

    def note(result: triton.InferResult | None, error: Exception | None) -> None:
        if result is None:
            return  # counted as unanswered
        own_s, now_s = sent.pop(result.get_response().id), time.time()
        is_counted = (own_s > load.begins_s + _WARM_UP_S) & (own_s < load.begins_s + (plays - 1) * chunk_s - 1e-6)
        waits_s.extend((now_s - own_s[is_counted]).tolist())

    outputs = [triton.InferRequestedOutput(name) for name in _OUTPUTS]
    with triton.InferenceServerClient(load.url) as client:
        client.start_stream(note)
        at = 0
        while at < len(due_s):
            end = min(int(np.searchsorted(due_s, time.time(), "right")), at + load.streams)
            if end > at:
                places = np.arange(at, end)
                flags = _START * (places < load.streams) + _END * (places >= len(due_s) - load.streams)
                columns = (places % load.streams + 1, np.full_like(places, load.chunk_samples), flags)
                rows = np.stack([*columns, np.full_like(places, _NO_OPTIONS)], 1)[None].astype(np.int64)
                begin = at * 160 % load.chunk_samples
                audio = np.tile(chunk[begin : begin + load.chunk_samples], end - at)[None]
                inputs = [triton.InferInput("ROWS", list(rows.shape), "INT64").set_data_from_numpy(rows)]
                inputs += [triton.InferInput("PCM", list(audio.shape), "INT16").set_data_from_numpy(audio)]
                sent[str(at)] = due_s[at:end]
                client.async_stream_infer(
                    "asr_batch", inputs, outputs=outputs, request_id=str(at), parameters={"client": load.name}
                )
                at = end
            time.sleep(_TICK_S)
        limit_s = time.time() + _ANSWERS_S
        while sent and time.time() < limit_s:
            time.sleep(_TICK_S)
        unanswered = sum(map(len, sent.values()))
        client.stop_stream(cancel_requests=True)
    results.put((waits_s, unanswered))
