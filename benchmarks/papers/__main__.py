"""Measures the papers' tables and writes docs/papers.md's from the result.

    python -m benchmarks.papers [--quick] [--papers 000,003] [--manifest dev.jsonl --train train.jsonl]
    python -m benchmarks.papers --page      # the page again, from the JSON

000 label-looping, 001 CUDA graphs, 002 decoding graphs, 003 beam search, 004 factorized transducers. 002, 004 and the
word errors of 003 need recordings (--manifest, --train). Papers that are not run keep their last result.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.papers import page
from benchmarks.papers.one import PAPERS
from benchmarks.papers.settings import Settings
from benchmarks.papers.speed import SHAPES
from benchmarks.results import ROOT, progress
from penstock.reporting import write_report
from penstock.runtime import check_device

BUNDLED = Path("tests/data/an4/manifest.jsonl")
"""Six recordings."""


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status, 1 if a paper failed."""
    chosen = parser().parse_args(arguments)
    if chosen.page:
        page.write(json.loads(chosen.json.read_text(encoding="utf-8")))
        return 0
    check_device(chosen.device, "--device")
    chosen.work.mkdir(parents=True, exist_ok=True)
    document = json.loads(chosen.json.read_text(encoding="utf-8")) if chosen.json.exists() else {}
    failed = []
    for paper in chosen.papers:
        started_s = time.monotonic()
        part = _run(paper, _settings(chosen), chosen)
        failed += [] if part else [paper]
        if part:
            document[paper] = part
            write_report(chosen.json, dict(sorted(document.items())))
            if chosen.json == page.RESULT:
                page.write(document)
        progress(f"{paper}: {'done' if part else 'failed'} after {time.monotonic() - started_s:.0f} s")
    return int(bool(failed))


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.papers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = found.add_argument
    add("--papers", type=_papers, default=list(PAPERS), metavar="N,...", help=f"of {','.join(PAPERS)} (all)")
    add("--quick", action="store_true", help="small sizes: some minutes; the times mean little")
    add("--device", default="cpu", help="cpu or cuda (cpu)")
    add("--shapes", type=_shapes, metavar="N,...", help=f"of {','.join(SHAPES)} (114M; all on a GPU)")
    add("--manifest", type=Path, default=BUNDLED, help="recordings with texts (six of the repository)")
    add("--train", type=Path, help="recordings to train on, with texts; without them some rows are missing")
    add("--work", type=Path, default=Path("build/papers"), metavar="DIR", help="folder for files (build/papers)")
    add("--json", type=Path, default=page.RESULT, metavar="FILE", help=f"the result ({page.RESULT}, and the page)")
    add("--oracle-python", metavar="PYTHON", help="interpreter with NeMo, whose searches are then measured, too")
    add("--threads", type=int, default=1, help="CPU threads (1)")
    add("--page", action="store_true", help="only write the page")
    return found


def _papers(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in PAPERS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}; accepted: {', '.join(PAPERS)}")
    return names


def _shapes(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in SHAPES]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}; accepted: {', '.join(SHAPES)}")
    return names


def _settings(chosen: argparse.Namespace) -> Settings:
    shapes = chosen.shapes or (("114M",) if chosen.device == "cpu" else tuple(SHAPES))
    make = Settings.quick if chosen.quick else Settings
    return make(
        device=chosen.device, shapes=shapes, manifest=chosen.manifest, train=chosen.train, work=chosen.work,
        with_nemo=bool(chosen.oracle_python), threads=chosen.threads,
    )  # fmt: skip


def _run(paper: str, settings: Settings, chosen: argparse.Namespace) -> dict | None:
    """One paper in a process of its own, with NeMo if the paper has rows of it; None if it failed."""
    result = chosen.work / f"{paper}.json"
    result.unlink(missing_ok=True)
    python = chosen.oracle_python if chosen.oracle_python and PAPERS[paper].has_nemo else sys.executable
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [python, "-m", "benchmarks.papers.one", paper, settings.dump(), str(result), _command()]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, check=False)
    return json.loads(result.read_text(encoding="utf-8")) if done.returncode == 0 else None


def _command() -> str:
    return " ".join(["python -m benchmarks.papers", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
