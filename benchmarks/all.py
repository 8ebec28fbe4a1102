"""Runs the encoder and recognizer benchmarks and writes one summary.

    python -m benchmarks.all [--quick] [--oracle-python PYTHON] [--model BUNDLE] [--out benchmark-results]
        [--with-nemo FILE.nemo] [--with-sherpa DIR]

encoder      one streaming step, with NeMo's as baseline and the same weights (oracle environment)
recognizer   samples to text in one process; with baselines in the oracle environment

Real-time streams through a server are measured by `make capacity` (docs/load_testing.md), searches beside NeMo's by
`make benchmark NAME=papers` (docs/papers.md).

Each writes its own .json and .md into the folder; summary.md there holds all tables. Nothing else should run at the
same time. A benchmark that fails does not stop the others; the exit status is then 1.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.results import ROOT, progress

BUNDLE = ROOT / "models" / "an4-rnnt-hybrid"


class Benchmark(NamedTuple):
    """One benchmark with the interpreter and options to run it."""

    name: str
    title: str
    python: str
    options: list[str]


def main() -> int:
    """Command line; returns the exit status."""
    arguments = parse_arguments()
    parts, failed = ["# Benchmarks"], []
    for benchmark in choose(arguments):
        progress(f"== {benchmark.name}")
        result = arguments.out / f"{benchmark.name}.json"
        is_done = run(benchmark, result, arguments.quick)
        text = result.with_suffix(".md").read_text(encoding="utf-8") if is_done else "It failed.\n"
        parts.append(f"## {benchmark.title}\n\n{text}")
        failed += [] if is_done else [benchmark.name]
    summary = "\n".join(parts)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "summary.md").write_text(summary, encoding="utf-8")
    print(summary)
    progress(f"wrote {arguments.out / 'summary.md'}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def parse_arguments() -> argparse.Namespace:
    """The command line's values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--oracle-python", metavar="PYTHON", help="interpreter with NeMo; no baselines without it")
    parser.add_argument("--model", type=Path, default=BUNDLE, metavar="BUNDLE", help="bundle to measure")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("benchmark-results"),
        metavar="DIR",
        help="folder of the results (benchmark-results)",
    )
    parser.add_argument("--with-nemo", type=Path, metavar="FILE.nemo", help="the model as .nemo: NeMo as baseline")
    parser.add_argument("--with-sherpa", type=Path, metavar="DIR", help="from benchmarks.exports: a baseline")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    arguments = parser.parse_args()
    if arguments.with_nemo and not arguments.oracle_python:
        parser.error("--with-nemo needs --oracle-python")
    return arguments


def choose(arguments: argparse.Namespace) -> list[Benchmark]:
    """The benchmarks that can run here."""
    oracle, model = arguments.oracle_python, ["--model", str(arguments.model)]
    baselines = [
        option
        for name, path in (("--with-nemo", arguments.with_nemo), ("--with-sherpa", arguments.with_sherpa))
        if path
        for option in (name, str(path))
    ]
    python = oracle if oracle and baselines else sys.executable
    chosen = [Benchmark("recognizer", "One process, samples to text", python, [*model, *baselines])]
    if oracle:
        chosen.insert(0, Benchmark("encoder", "One encoder step, with NeMo as baseline", oracle, []))
    return chosen


def run(benchmark: Benchmark, result: Path, is_quick: bool) -> bool:
    """Runs one benchmark; True if it has written its result."""
    for path in (result, result.with_suffix(".md")):
        path.unlink(missing_ok=True)  # result of an earlier run
    quick = ("--quick",) if is_quick else ()
    command = [
        benchmark.python,
        "-m",
        f"benchmarks.{benchmark.name}",
        *benchmark.options,
        *quick,
        "--json",
        str(result),
    ]
    environment = os.environ | {"PYTHONPATH": _joined([ROOT / "src", ROOT], os.environ.get("PYTHONPATH"))}
    done = subprocess.run(command, env=environment, stdout=sys.stderr, check=False)
    return done.returncode == 0 and result.with_suffix(".md").is_file()


def _joined(first: list[Path], rest: str | None) -> str:
    return os.pathsep.join([*map(str, first), *([rest] if rest else [])])


if __name__ == "__main__":
    sys.exit(main())
