"""How many streams one server on this machine transcribes in real time, and where its time goes: context by context.

    python scripts/benchmark_server.py [--quick] [--model BUNDLE] [--contexts 70,6 ...] [--piece-ms 100]
        [--streams N ...] [--recordings MANIFEST] [--json FILE]

The trials are those of `python -m loadtest` (docs/load_testing.md tells what is measured and when a trial passes), each
on a fresh server; this adds the contexts and two tables. The largest number that passes is searched, then confirmed
with a longer trial. With --streams these numbers are tried, and nothing is searched.
"""

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from benchmark_report import describe, machine, progress, publish  # noqa: E402

from loadtest.options import DEFAULT_RECORDINGS  # noqa: E402
from loadtest.processes import GENERATOR, SERVER  # noqa: E402
from loadtest.trials import SearchPlan, Trials  # noqa: E402
from loadtest.triton_metrics import MEMBERS  # noqa: E402
from loadtest.verdict_lines import number  # noqa: E402
from penstock.errors import PenstockError  # noqa: E402
from penstock.reporting.table import markdown_table  # noqa: E402

BUNDLE = ROOT / "models" / "an4-rnnt-hybrid"
CONTEXTS, QUICK_CONTEXTS = ("70,13", "70,6", "70,1", "70,0"), ("70,6",)
LARGEST_TRIAL, RESOLUTION = 512, 0.08


def main() -> int:
    """Command line; returns the exit status."""
    arguments = parse_arguments()
    where, results = machine(threads=1), []
    with ExitStack() as stack:
        out = folder_of_trials(arguments.json, stack)
        try:
            for context in arguments.contexts:
                progress(f"context {context}")
                results += [window | {"context": context} for window in measure(arguments, context, out / context)]
        except (PenstockError, ValueError) as error:
            progress(f"benchmark_server: error: {error}")
            return 1
    document = {"machine": where, "model": arguments.model.name, "results": results}
    publish(to_markdown(where, results), document, arguments.json)
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line's values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=BUNDLE, metavar="BUNDLE")
    parser.add_argument("--contexts", nargs="+", metavar="L,R")
    parser.add_argument("--piece-ms", type=float, default=100.0, help="audio in each request (100)")
    parser.add_argument("--streams", nargs="+", type=int, metavar="N", help="try these and search nothing")
    parser.add_argument("--recordings", type=Path, default=DEFAULT_RECORDINGS, help="a NeMo manifest")
    parser.add_argument("--stagger-seconds", type=float, default=5.0, help="time in which the streams start (5)")
    parser.add_argument("--seconds", type=float, default=15.0, help="time of measurement when searching (15)")
    parser.add_argument("--confirm-seconds", type=float, default=60.0, help="the same when confirming (60)")
    parser.add_argument("--first", type=int, default=16, metavar="N", help="streams of the first trial (16)")
    parser.add_argument("--processes", type=int, metavar="N", help="of the load generator (one for 64 streams)")
    parser.add_argument("--quick", action="store_true", help="short trials, one context")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    arguments.contexts = arguments.contexts or (QUICK_CONTEXTS if arguments.quick else CONTEXTS)
    if arguments.quick:
        arguments.stagger_seconds, arguments.seconds, arguments.confirm_seconds = 3.0, 5.0, 10.0
    return arguments


def folder_of_trials(json_path: Path | None, stack: ExitStack) -> Path:
    """Where the trials' own reports go: beside the result, else nowhere that stays."""
    if json_path is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory()))
    return json_path.with_suffix("")


def measure(arguments: argparse.Namespace, context: str, out: Path) -> list[dict]:
    """The windows of the trials that count: those asked for, or the confirmed largest. PenstockError."""
    options = ["--recordings", str(arguments.recordings.absolute()), "--piece-ms", str(arguments.piece_ms)]
    options += ["--stagger-seconds", str(arguments.stagger_seconds)]
    trials = Trials(arguments.model, context, 1, arguments.processes, "grpc", out, options, progress)
    if arguments.streams:
        for streams in arguments.streams:
            trials.run(streams, arguments.seconds)
        windows = [window for report in trials.reports for window in report["windows"]]
    else:
        plan = SearchPlan(arguments.first, LARGEST_TRIAL, arguments.seconds, arguments.confirm_seconds, RESOLUTION)
        capacity = trials.find_capacity(plan)["capacity"]
        progress(f"  {capacity['text']}")
        if not capacity["streams"]:
            raise PenstockError(f"context {context}: not a single stream in real time")
        windows = trials.reports[-1]["windows"]  # the confirmation
    if spoilt := sum(window["words"]["recordings_with_several_texts"] for window in windows):
        raise PenstockError(f"context {context}: {spoilt} recordings were transcribed in several ways")
    return windows


def to_markdown(where: dict, results: list[dict]) -> str:
    """Two tables: what is reached, and where the time goes. `results`: windows of loadtest's reports."""
    header = [
        "context", "streams", "passed", "a core", "a busy core", "late", "final p50", "p95", "p99", "server cores",
        "generator", "lag p99", "others",
    ]  # fmt: skip
    rows = [
        [
            f"[{r['context']}]", f"{r['streams']:g}", "yes" if r["passed"] else "NO", r["streams"] / where["cores"],
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
        for name in (SERVER, *MEMBERS):
            cores, member = r["machine"]["processes"][name]["cores"], r["members"].get(name, {})
            share = f"{100 * cores / r['machine']['server_cores']:.0f} %"
            figures = [member.get(figure, "") for figure in ("batch", "queue_ms", "compute_ms")]
            parts.append([f"[{r['context']}]", f"{r['streams']:g}", name, cores, share, *figures])
    return f"{markdown_table(header, rows)}\n\n{markdown_table(parts_header, parts)}\n\n{describe(where)}"


if __name__ == "__main__":
    sys.exit(main())
