"""How many streams one server on this machine transcribes in real time, and where its time goes. Loopback only.

    python scripts/benchmark_server.py [--quick] [--model BUNDLE] [--contexts 70,6 ...] [--piece-ms 100]
        [--streams N ...] [--manifest FILE] [--json FILE]

Streams of real speech are sent over gRPC in real time (scripts/benchmark_load.py). A trial passes if at most 0.1 % of
the chunks are late and 95 % of the final texts come within a second of the end of the audio. A chunk is late when the
answer to the piece that completed it comes later than one chunk's duration after that piece was spoken. The largest
number that passes is searched on one server, then confirmed with a longer trial on a new one. With --streams these
numbers are tried, and nothing is searched.

Cores: CPU seconds a second, from /proc; the load generator runs on the same machine and takes its share, as do other
programs ("others"), which should have none. Batch, queue and compute: Triton's own counters, means over the requests;
every request counts the whole time of its batch.
"""

import argparse
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmark_load import LoadGenerator, LoadResult
from benchmark_report import ROOT, describe, machine, progress, publish

from penstock.audio import read_audio
from penstock.checkpoint import Checkpoint
from penstock.config import AttentionContext
from penstock.model_repository import find_model_repository
from penstock.reporting.percentiles import percentiles_ms
from penstock.reporting.table import markdown_table
from penstock.server import TritonServer
from penstock.server_launch import LOOPBACK, ServerOptions
from penstock.settings import parse_context
from penstock.triton_install import find_triton

BUNDLE = ROOT / "models" / "an4-rnnt-hybrid"
MANIFEST = ROOT / "tests" / "data" / "an4" / "manifest.jsonl"
CONTEXTS, QUICK_CONTEXTS = ("70,13", "70,6", "70,1", "70,0"), ("70,6",)
SAMPLE_RATE_HZ = 16000
MEMBERS = ("features", "encoder", "decoder")
MOST_LATE_SHARE, LONGEST_P95_FINAL_S = 0.001, 1.0
LARGEST_TRIAL = 512


class Snapshot(NamedTuple):
    """Counters at one moment."""

    time_s: float
    cpu_s: dict[str, float]
    """Of each process of the server, of this process ("load generator"), and of the whole "machine"."""
    triton: dict[tuple[str, str], float]
    """(model, metric) -> value"""


class Probe:
    """Reads the counters of a server and of this process."""

    def __init__(self, server: TritonServer):
        self._group = server.process_id
        self._metrics_url = f"http://{LOOPBACK}:{server.ports.metrics}/metrics"

    def __call__(self) -> Snapshot:
        """What they show now."""
        cpu_s = {**_group_cpu_s(self._group), "load generator": time.process_time(), "machine": _machine_cpu_s()}
        return Snapshot(time.monotonic(), cpu_s, self._triton())

    def _triton(self) -> dict[tuple[str, str], float]:
        with urllib.request.urlopen(self._metrics_url, timeout=5.0) as response:
            text = response.read().decode()
        found = re.findall(r'^(nv_inference_\w+)\{model="(\w+)"[^}]*\} (\S+)$', text, re.MULTILINE)
        return {(model, metric): float(value) for metric, model, value in found}


def main() -> None:
    """Command line."""
    arguments = parse_arguments()
    where = machine(threads=1)
    recordings = read_recordings(arguments.manifest)
    config = Checkpoint(arguments.model).config
    results = []
    for context in map(parse_context, arguments.contexts):
        progress(f"context {context}")
        bench = Bench(arguments, recordings, context, config.chunk_ms(context) / 1000)
        results += [trial | {"context": list(context)} for trial in bench.measure()]
    publish(
        to_markdown(where, results),
        {"machine": where, "model": arguments.model.name, "results": results},
        arguments.json,
    )


def parse_arguments() -> argparse.Namespace:
    """The command line's values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=BUNDLE, metavar="BUNDLE")
    parser.add_argument("--contexts", nargs="+", metavar="L,R")
    parser.add_argument("--piece-ms", type=float, default=100.0, help="audio in each request (100)")
    parser.add_argument("--streams", nargs="+", type=int, metavar="N", help="try these and search nothing")
    parser.add_argument("--manifest", type=Path, default=MANIFEST, help="recordings, a NeMo manifest")
    parser.add_argument("--ramp-seconds", type=float, default=5.0, help="time in which the streams start (5)")
    parser.add_argument("--seconds", type=float, default=15.0, help="time of measurement when searching (15)")
    parser.add_argument("--confirm-seconds", type=float, default=60.0, help="the same when confirming (60)")
    parser.add_argument("--first", type=int, default=16, metavar="N", help="streams of the first trial (16)")
    parser.add_argument("--quick", action="store_true", help="short trials, one context, no confirmation")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    arguments.contexts = arguments.contexts or (QUICK_CONTEXTS if arguments.quick else CONTEXTS)
    if arguments.quick:
        arguments.ramp_seconds, arguments.seconds, arguments.confirm_seconds = 3.0, 5.0, 0.0
    return arguments


def read_recordings(manifest: Path) -> list:
    """Samples of a manifest's recordings, whose paths are relative to it."""
    entries = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    return [read_audio(manifest.parent / entry["audio_filepath"], SAMPLE_RATE_HZ) for entry in entries]


class Bench:
    """Trials in one context."""

    def __init__(self, arguments: argparse.Namespace, recordings: list, context: AttentionContext, chunk_s: float):
        self._arguments = arguments
        self._recordings = recordings
        self._context = context
        self._chunk_s = chunk_s
        self._texts: dict[int, set[str]] = {}

    def measure(self) -> list[dict]:
        """The trials that count: those asked for, or the confirmed largest."""
        arguments = self._arguments
        if arguments.streams:
            with self._server() as trial:
                return [trial(streams, arguments.seconds) for streams in arguments.streams]
        with self._server() as trial:
            best = search(lambda streams: trial(streams, arguments.seconds), arguments.first)
        if best is None:
            raise SystemExit(f"{self._context}: not a single stream in real time")
        return [self._confirm(best) if arguments.confirm_seconds else best]

    def _confirm(self, best: dict) -> dict:
        """A longer trial on a new server; with fewer streams where it fails."""
        streams = best["streams"]
        while True:
            with self._server() as trial:
                result = trial(streams, self._arguments.confirm_seconds)
            if result["passed"] or streams == 1:
                return result
            streams = max(1, min(streams - 1, round(0.93 * streams)))

    @contextmanager
    def _server(self) -> Iterator[Callable[[int, float], dict]]:
        environment = {
            "PENSTOCK_MODEL": str(self._arguments.model.absolute()),
            "PENSTOCK_CONTEXT": f"{self._context.left},{self._context.right}",
            "PENSTOCK_MAX_STREAMS": str(LARGEST_TRIAL + 64),  # a stream that has ended may still be answered
            "PENSTOCK_THREADS": "1",
        }
        options = ServerOptions(find_model_repository(), drain_s=1, environment=environment)
        with TritonServer(find_triton(), options) as server:
            load = LoadGenerator(f"{LOOPBACK}:{server.ports.grpc}", self._recordings, self._arguments.piece_ms)
            probe = Probe(server)

            def trial(streams: int, seconds: float) -> dict:
                try:
                    result = load.run(streams, self._arguments.ramp_seconds, seconds, probe)
                except urllib.error.URLError as error:
                    reason = server.end_reason() if server.has_ended() else error
                    raise SystemExit(f"the server is gone at {streams} streams: {reason}") from error
                self._check_texts(result)
                summary = summarise(streams, self._chunk_s, result)
                progress(_one_line(summary))
                return summary

            yield trial

    def _check_texts(self, result: LoadResult) -> None:
        """A recording has one text, however many streams there are and whatever the load."""
        for recording, texts in result.texts.items():
            known = self._texts.setdefault(recording, set())
            known |= texts
            if len(known) > 1:
                raise SystemExit(f"recording {recording} was transcribed in several ways: {sorted(known)}")


def search(trial: Callable[[int], dict], first: int) -> dict | None:
    """The passed trial with the most streams, to about one in twelve; None if not even one stream passes."""
    best, failed, streams = None, LARGEST_TRIAL + 1, first
    while 1 <= streams < failed:
        result = trial(streams)
        if result["passed"]:
            best = result
        else:
            failed = streams
        passed = best["streams"] if best else 0
        if failed - passed <= max(1, passed // 12):
            break
        streams = min(2 * streams, LARGEST_TRIAL) if failed > LARGEST_TRIAL else (passed + failed) // 2
    return best


def summarise(streams: int, chunk_s: float, result: LoadResult) -> dict:
    """One trial's figures."""
    chunks = [p for p in result.pieces if p.completes_chunk or p.answered_s == float("inf")]
    chunk_latency_s = [piece.answered_s - piece.deadline_s for piece in chunks]
    final_latency_s = [piece.answered_s - piece.deadline_s for piece in result.pieces if piece.is_last]
    late_share = sum(latency_s > chunk_s for latency_s in chunk_latency_s) / max(1, len(chunks))
    final_ms = percentiles_ms(final_latency_s)
    before, after = result.probes
    seconds = after.time_s - before.time_s
    cores = {name: (after.cpu_s[name] - before.cpu_s[name]) / seconds for name in before.cpu_s}
    server_cores = sum(cores.get(name, 0.0) for name in ("tritonserver", *MEMBERS))
    return {
        "streams": streams,
        "passed": not result.errors and late_share <= MOST_LATE_SHARE and final_ms["p95"] <= 1000 * LONGEST_P95_FINAL_S,
        "seconds": seconds,
        "chunks": len(chunks),
        "late_share": late_share,
        "chunk_latency_ms": percentiles_ms(chunk_latency_s),
        "finals": len(final_latency_s),
        "final_latency_ms": final_ms,
        "generator_lag_ms": percentiles_ms([piece.sent_s - piece.deadline_s for piece in result.pieces]),
        "errors": result.errors[:5],
        "cores": cores,
        "server_cores": server_cores,
        "cores_of_others": max(0.0, cores["machine"] - server_cores - cores["load generator"]),
        "members": {name: _member(name, before.triton, after.triton) for name in MEMBERS},
    }


def _member(name: str, before: dict, after: dict) -> dict[str, float]:
    """Means over the requests that a member answered between two snapshots."""

    def gained(metric: str) -> float:
        return after.get((name, f"nv_inference_{metric}"), 0.0) - before.get((name, f"nv_inference_{metric}"), 0.0)

    requests, batches = max(1.0, gained("count")), max(1.0, gained("exec_count"))
    parts = ("input", "infer", "output")
    return {
        "batch": requests / batches,
        "queue_ms": gained("queue_duration_us") / requests / 1000,
        "compute_ms": sum(gained(f"compute_{part}_duration_us") for part in parts) / requests / 1000,
    }


def _one_line(trial: dict) -> str:
    final, lag = trial["final_latency_ms"], trial["generator_lag_ms"]
    errors = f", errors: {trial['errors']}" if trial["errors"] else ""
    verdict = "pass" if trial["passed"] else "fail"
    return (
        f"  {trial['streams']} streams {verdict}: {100 * trial['late_share']:.2f} % late, "
        f"final p50 {final['p50']:.0f} p95 {final['p95']:.0f} ms, generator's own lag p99 {lag['p99']:.1f} ms, "
        f"cores: server {trial['server_cores']:.2f}, others {trial['cores_of_others']:.2f}{errors}"
    )


def _group_cpu_s(group: int) -> dict[str, float]:
    """User and system seconds of the processes of a process group, by name: tritonserver, and the members."""
    found: dict[str, float] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            arguments = (path / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue  # it has just ended
        if int(fields[2]) == group:
            name = next((part for part in MEMBERS if f"/{part}/1/model.py" in " ".join(arguments)), "tritonserver")
            found[name] = found.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def _machine_cpu_s() -> float:
    """Busy seconds of all cores, by whatever process."""
    user, nice, system, _, _, interrupts, soft, *_ = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    return sum(map(int, (user, nice, system, interrupts, soft))) / os.sysconf("SC_CLK_TCK")


def to_markdown(where: dict, results: list[dict]) -> str:
    """Two tables: what is reached, and where the time goes."""
    header = [
        "context", "streams", "a core", "a busy core", "late", "final p50", "p95", "p99", "server cores", "generator",
        "lag p99", "others",
    ]  # fmt: skip
    rows = [
        [
            _context(r), r["streams"], r["streams"] / where["cores"], r["streams"] / r["server_cores"],
            f"{100 * r['late_share']:.2f} %", *(f"{r['final_latency_ms'][p]:.0f} ms" for p in ("p50", "p95", "p99")),
            r["server_cores"], r["cores"]["load generator"], f"{r['generator_lag_ms']['p99']:.1f} ms",
            r["cores_of_others"],
        ]
        for r in results
    ]  # fmt: skip
    parts_header = ["context", "streams", "part", "cores", "share", "batch", "queue ms", "compute ms"]
    parts = []
    for r in results:
        for name in ("tritonserver", *MEMBERS):
            member = r["members"].get(name, {})
            share = f"{100 * r['cores'][name] / r['server_cores']:.0f} %"
            parts.append([_context(r), r["streams"], name, r["cores"][name], share, *(member.values() or ("", "", ""))])
    return f"{markdown_table(header, rows)}\n\n{markdown_table(parts_header, parts)}\n\n{describe(where)}"


def _context(result: dict) -> str:
    return f"[{result['context'][0]},{result['context'][1]}]"


if __name__ == "__main__":
    main()
