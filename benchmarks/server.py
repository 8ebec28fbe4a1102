"""Measures how many real-time streams one server on this machine sustains, and where its time goes, per context.

    python -m benchmarks.server [--quick] [--model BUNDLE] [--contexts 70,6 ...] [--request-ms 100]
        [--streams N ...] [--recordings MANIFEST] [--json FILE]

The trials are those of `python -m loadtest` (docs/load_testing.md says what is measured and when a trial passes), each
on a fresh server; this adds the contexts and two tables. The largest number of streams that passes is searched, then
confirmed with a longer trial. With --streams only these numbers are tried.
"""

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.results import ROOT, describe, environment, progress, publish
from loadtest.capacity import SearchPlan, Trials
from loadtest.options import DEFAULT_RECORDINGS, DIRECT
from loadtest.processes import GENERATOR, SERVER
from loadtest.report import number
from loadtest.triton_metrics import MODELS
from penstock.errors import PenstockError, RunError
from penstock.reporting import markdown_table

BUNDLE = ROOT / "models" / "an4-rnnt-hybrid"
CONTEXTS, QUICK_CONTEXTS = ("70,13", "70,6", "70,1", "70,0"), ("70,6",)
MAX_STREAMS, RESOLUTION = 512, 0.08


def main() -> int:
    """Command line; returns the exit status."""
    arguments = parse_arguments()
    here, results = environment(threads=1), []
    with ExitStack() as stack:
        out = folder_of_trials(arguments.json, stack)
        try:
            for context in arguments.contexts:
                progress(f"context {context}")
                results += [window | {"context": context} for window in measure(arguments, context, out / context)]
        except (PenstockError, ValueError) as error:
            progress(f"benchmarks.server: error: {error}")
            return 1
    document = {"environment": here, "model": arguments.model.name, "results": results}
    publish(to_markdown(here, results), document, arguments.json)
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line's values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=BUNDLE, metavar="BUNDLE", help="bundle to measure")
    parser.add_argument("--contexts", nargs="+", metavar="L,R", help="attention contexts")
    parser.add_argument("--request-ms", type=float, default=100.0, help="audio in each request (100)")
    parser.add_argument(
        "--streams", nargs="+", type=int, metavar="N", help="numbers of streams to try, instead of searching"
    )
    parser.add_argument("--recordings", type=Path, default=DEFAULT_RECORDINGS, help="a NeMo manifest")
    parser.add_argument(
        "--stagger-seconds", type=float, default=5.0, help="streams start at random moments within this time (5)"
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="measured time of a search trial (15)")
    parser.add_argument(
        "--confirm-seconds", type=float, default=60.0, help="measured time of the confirming trial (60)"
    )
    parser.add_argument("--first", type=int, default=16, metavar="N", help="streams of the first trial (16)")
    parser.add_argument("--processes", type=int, metavar="N", help="load generator processes (one per 64 streams)")
    parser.add_argument("--quick", action="store_true", help="short trials, one context")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    arguments = parser.parse_args()
    arguments.contexts = arguments.contexts or (QUICK_CONTEXTS if arguments.quick else CONTEXTS)
    if arguments.quick:
        arguments.stagger_seconds, arguments.seconds, arguments.confirm_seconds = 3.0, 5.0, 10.0
    return arguments


def folder_of_trials(json_path: Path | None, stack: ExitStack) -> Path:
    """The folder of the trials' reports: beside the result, else a temporary one."""
    if json_path is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory()))
    return json_path.with_suffix("")


def measure(arguments: argparse.Namespace, context: str, out: Path) -> list[dict]:
    """The windows of the trials that count: those of --streams, or the confirmed maximum. Raises RunError."""
    options = ["--recordings", str(arguments.recordings.absolute()), "--request-ms", str(arguments.request_ms)]
    options += ["--stagger-seconds", str(arguments.stagger_seconds)]
    trials = Trials(arguments.model, context, 1, arguments.processes, "grpc", DIRECT, out, options, progress)
    if arguments.streams:
        for streams in arguments.streams:
            trials.run(streams, arguments.seconds)
        windows = [window for report in trials.reports for window in report["windows"]]
    else:
        plan = SearchPlan(arguments.first, MAX_STREAMS, arguments.seconds, arguments.confirm_seconds, RESOLUTION)
        capacity = trials.find_capacity(plan)["capacity"]
        progress(f"  {capacity['text']}")
        if not capacity["streams"]:
            raise RunError(f"context {context}: not a single stream in real time")
        windows = trials.reports[-1]["windows"]  # the confirmation
    if unequal := sum(window["words"]["recordings_with_several_texts"] for window in windows):
        raise RunError(f"context {context}: {unequal} recordings were transcribed in several ways")
    return windows


def to_markdown(here: dict, results: list[dict]) -> str:
    """Two tables: streams and latency, and where the time goes. `results`: windows of loadtest's reports."""
    header = [
        "context", "streams", "passed", "per core", "per busy core", "late", "final p50", "p95", "p99", "server cores",
        "generator", "lag p99", "others",
    ]  # fmt: skip
    rows = [
        [
            f"[{r['context']}]", f"{r['streams']:g}", "yes" if r["passed"] else "NO", r["streams"] / here["cores"],
            r["streams"] / r["machine"]["server_cores"], f"{100 * r['late_share']:.2f} %",
            *(f"{number(r['final_latency_ms'][p])} ms" for p in ("p50", "p95", "p99")),
            r["machine"]["server_cores"], r["machine"]["processes"][GENERATOR]["cores"],
            f"{number(r['generator']['lag_ms']['p99'], 1)} ms", r["machine"]["other_cores"],
        ]
        for r in results
    ]  # fmt: skip
    parts_header = ["context", "streams", "part", "cores", "share", "batch", "queue ms", "compute ms"]
    parts = []
    for r in results:
        for name in (SERVER, *MODELS):
            cores, times = r["machine"]["processes"][name]["cores"], r["models"].get(name, {})
            share = f"{100 * cores / r['machine']['server_cores']:.0f} %"
            figures = [times.get(figure, "") for figure in ("batch", "queue_ms", "compute_ms")]
            parts.append([f"[{r['context']}]", f"{r['streams']:g}", name, cores, share, *figures])
    return f"{markdown_table(header, rows)}\n\n{markdown_table(parts_header, parts)}\n\n{describe(here)}"


if __name__ == "__main__":
    sys.exit(main())
