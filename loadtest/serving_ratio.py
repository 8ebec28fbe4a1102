"""`python -m loadtest.serving_ratio`: audio seconds per core-second of the server, divided by those in one process.

Per context: the recognizer in one process with 32 streams; a server with direct clients and with batched ones, at
loads chosen for [70,6]; and 32 streams of direct clients with and without whole chunks and of batched ones, whose final
latencies are compared. All in interleaved rounds on one machine; figures are medians of the rounds.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from loadtest.capacity import slots_for
from loadtest.fresh_server import ReadyServer, ServerPlan, fresh_server
from loadtest.locust_run import headless_report, processes_for, terminated_as_interrupt
from loadtest.options import BUNDLE, DEFAULT_OUT, ROOT
from loadtest.report import number, write_json
from penstock.errors import PenstockError, RunError
from penstock.reporting import commit, date_utc, describe_hardware, markdown_table

IN_PROCESS_STREAMS = LATENCY_STREAMS = 32
_STAGGER_S = 4
BEFORE, DIRECT, BATCHED = "direct, each part", "direct", "batched"
_LOAD_SHARES = {DIRECT: 0.4, BATCHED: 0.8}
"""Shares of what one core recognizes in one process: the loads at which a server is measured. Chosen for [70,6]: at
[70,0] two cores do not sustain the server and the load generator."""
ARGUMENTS = {BEFORE: ["--no-align"], DIRECT: [], BATCHED: ["--batched"]}
GOALS = {"70,6": {DIRECT: 0.65, BATCHED: 0.85}, "70,0": {DIRECT: 0.45, BATCHED: 0.75}}
MAX_LATENCY_RATIO = 1.1
"""Of the p95 of end of audio to final text, against that of direct clients that send each part."""


class Trial(NamedTuple):
    """What one window of a load test showed."""

    audio_per_core: float
    """Audio seconds per core-second of the server."""
    late_chunks: int
    p95_final_ms: float
    """From the end of the audio to the final text."""
    p95_chunk_ms: float
    """From a chunk's last sample to its words."""
    reasons: list[str]
    """Why the window did not pass."""
    generator: str
    """Whether the load generator was on schedule."""


class Measured(NamedTuple):
    """All rounds of one context."""

    context: str
    streams: dict[str, int]
    """Of the trials of the ratio, by the kind of client."""
    in_process: list[float]
    """Audio seconds per core-second."""
    loaded: dict[str, list[Trial]]
    light: dict[str, list[Trial]]
    """With LATENCY_STREAMS streams."""


def main(words: list[str] | None = None) -> int:
    """Runs the command; returns the exit status: 2 where it could not run. Goals that were missed are named."""
    args = _parser().parse_args(words)
    try:
        with terminated_as_interrupt():
            measured = [_measure(args, context) for context in args.contexts]
    except (PenstockError, ValueError) as error:
        _log(f"serving_ratio: error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    where = {
        "hardware": describe_hardware(), "date": date_utc(), "commit": commit(), "model": args.model.name,
        "command": shlex.join(["python", "-m", "loadtest.serving_ratio", *(sys.argv[1:] if words is None else words)]),
    }  # fmt: skip
    missed = [reason for one in measured for reason in missed_goals(one)]
    document = {**where, "missed": missed, "contexts": [_document(one) for one in measured]}
    write_json(args.out / "serving_ratio.json", document)
    text = "\n\n".join([to_markdown(measured), f"{where['hardware']}, {where['date']}, commit {where['commit']}"])
    (args.out / "serving_ratio.md").write_text(text + "\n", encoding="utf-8")
    print("\n".join([text, *(f"not met: {reason}" for reason in missed)]))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="loadtest.serving_ratio", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--model", type=Path, default=BUNDLE, metavar="BUNDLE", help="bundle to serve")
    add("--contexts", nargs="+", default=list(GOALS), metavar="L,R", help="attention contexts (70,6 70,0)")
    add("--rounds", type=int, default=3, help="rounds, of which figures are medians (3)")
    add("--seconds", type=float, default=30.0, metavar="S", help="measured time of a trial (30)")
    add("--streams", type=int, metavar="N", help="streams of the ratio's trials (40, 80 %% of what a core recognizes)")
    add("--out", type=Path, default=DEFAULT_OUT / "serving_ratio", metavar="DIR", help="folder of the reports")
    return parser


def _measure(args: argparse.Namespace, context: str) -> Measured:
    in_process = [_in_process(args, context)]
    streams = {kind: args.streams or max(1, round(share * in_process[0])) for kind, share in _LOAD_SHARES.items()}
    found = Measured(context, streams, in_process, {kind: [] for kind in streams}, {name: [] for name in ARGUMENTS})
    plan = ServerPlan(args.model, context, slots_for(max(*streams.values(), LATENCY_STREAMS)), threads=1)
    for turn in range(args.rounds):
        if turn:
            in_process.append(_in_process(args, context))
        with fresh_server(plan) as server:
            for kind, trials in found.loaded.items():
                trials.append(_trial(args, server, f"{context}-{turn}", kind, streams[kind]))
            for kind, trials in found.light.items():
                trials.append(_trial(args, server, f"{context}-{turn}", kind, LATENCY_STREAMS))
    return found


def _in_process(args: argparse.Namespace, context: str) -> float:
    """Audio seconds per core-second of one process with one thread; the first of three rounds compiles its models."""
    path = args.out / f"in-process-{context}.json"
    path.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "benchmarks.recognizer", "--model", str(args.model), "--contexts", context),
        *("--streams", str(IN_PROCESS_STREAMS), "--rounds", "3", "--json", str(path.absolute())),
    ]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise RunError(f"benchmarks.recognizer ended with exit status {done.returncode}; its messages are above")
    (result,) = json.loads(path.read_text(encoding="utf-8"))["results"]
    figure = result["audio_s"] / statistics.median(result["cpu_seconds"])
    _log(f"[{context}] in one process: {figure:.0f} audio seconds per core-second")
    return figure


def _trial(args: argparse.Namespace, server: ReadyServer, name: str, kind: str, streams: int) -> Trial:
    size = ["--streams", str(streams), "--minutes", f"{args.seconds / 60:.6g}", "--stagger-seconds", str(_STAGGER_S)]
    folder = args.out / f"{name}-{streams}-{kind.replace(', ', '-').replace(' ', '-')}"
    arguments = [*size, "--no-html", "--loglevel", "WARNING", *ARGUMENTS[kind]]
    report = headless_report(server.target("grpc"), processes_for(streams, ARGUMENTS[kind]), folder, arguments)
    trial = read_trial(report["windows"][0])
    _log(
        f"[{name}] {kind}, {streams} streams: {trial.audio_per_core:.0f} audio seconds per core-second, "
        f"{trial.late_chunks} chunks late, p95 {trial.p95_final_ms:.0f} ms. {trial.generator}"
    )
    return trial


def read_trial(window: dict) -> Trial:
    """Returns the figures of a report's window; infinite where they were not measured."""
    per_core = window["streams_per_server_core"]
    p95_ms = (window[name]["p95"] for name in ("final_latency_ms", "chunk_latency_ms"))
    return Trial(
        float("nan") if per_core is None else per_core,
        window["late_chunks"],
        *(float("inf") if p95 is None else p95 for p95 in p95_ms),
        window["reasons"],
        window["generator"]["text"],
    )


def ratio(measured: Measured, kind: str) -> float:
    """The median over rounds of served / in process."""
    pairs = zip(measured.loaded[kind], measured.in_process, strict=True)
    return statistics.median(trial.audio_per_core / figure for trial, figure in pairs)


def latency_ratio(measured: Measured, kind: str) -> float:
    """The median over rounds of the p95 of end to final, against direct clients that send each part."""
    pairs = zip(measured.light[kind], measured.light[BEFORE], strict=True)
    return statistics.median(trial.p95_final_ms / before.p95_final_ms for trial, before in pairs)


def missed_goals(measured: Measured) -> list[str]:
    """Returns what is short of the goals; a context without goals has only the latency's and the late chunks'."""
    missed = []
    for kind, trials in measured.loaded.items():
        goal, found = GOALS.get(measured.context, {}).get(kind, 0.0), ratio(measured, kind)
        if not found >= goal:
            missed.append(f"[{measured.context}] {kind}: ratio {found:.2f}, the goal is {goal:.2f}")
        if late := sum(trial.late_chunks for trial in [*trials, *measured.light[kind]]):
            missed.append(f"[{measured.context}] {kind}: {late} chunks late")
        if not latency_ratio(measured, kind) <= MAX_LATENCY_RATIO:
            found = latency_ratio(measured, kind)
            missed.append(f"[{measured.context}] {kind}: p95 to the final text is {found:.2f} of that of each part")
    return missed


def to_markdown(measured: list[Measured]) -> str:
    """The table of the ratios and that of the latencies."""
    ratios = [
        (
            f"[{one.context}]", number(statistics.median(one.in_process)), str(one.streams[kind]), kind,
            number(statistics.median(trial.audio_per_core for trial in trials)), f"{ratio(one, kind):.2f}",
            str(sum(trial.late_chunks for trial in trials)),
            number(statistics.median(trial.p95_final_ms for trial in trials)),
        )
        for one in measured
        for kind, trials in one.loaded.items()
    ]  # fmt: skip
    latencies = [
        (
            f"[{one.context}]", kind, number(statistics.median(trial.p95_final_ms for trial in trials)),
            f"{latency_ratio(one, kind):.2f}", number(statistics.median(trial.p95_chunk_ms for trial in trials)),
            str(sum(trial.late_chunks for trial in trials)),
            number(statistics.median(trial.audio_per_core for trial in trials)),
        )
        for one in measured
        for kind, trials in one.light.items()
    ]  # fmt: skip
    head = ("context", "in process", "streams", "clients", "served", "ratio", "chunks late", "p95 to final, ms")
    light = (
        "context",
        f"{LATENCY_STREAMS} streams",
        "p95 to final, ms",
        "ratio",
        "p95 to words, ms",
        "chunks late",
        "served",
    )
    return f"{markdown_table(head, ratios, left=1)}\n\n{markdown_table(light, latencies, left=2)}"


def _document(measured: Measured) -> dict:
    return {
        "context": measured.context,
        "streams": measured.streams,
        "in_process": measured.in_process,
        "ratio": {kind: ratio(measured, kind) for kind in measured.loaded},
        "latency_ratio": {kind: latency_ratio(measured, kind) for kind in measured.light},
        "loaded": {kind: [trial._asdict() for trial in trials] for kind, trials in measured.loaded.items()},
        "light": {kind: [trial._asdict() for trial in trials] for kind, trials in measured.light.items()},
    }


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
