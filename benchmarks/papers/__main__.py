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
import textwrap
import time
from collections.abc import Collection
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from benchmarks.papers.inputs import SHAPES
from benchmarks.papers.runner import Settings
from benchmarks.results import ROOT, environment, progress, replace_parts, without_padding
from penstock.reporting import write_report
from penstock.runtime import check_device, prepare_process

PAGE, RESULT = Path("docs/papers.md"), Path("docs/benchmarks/papers.json")
_COLUMNS = 120
BUNDLED = Path("tests/data/an4/manifest.jsonl")
"""Six recordings."""


class Paper(NamedTuple):
    """A module with `rows(settings)` and `tables(rows)`."""

    name: str
    has_nemo: bool

    def module(self) -> ModuleType:
        """Imports it."""
        return import_module(f"benchmarks.papers.{self.name}")


PAPERS = {
    "000": Paper("label_looping", True),
    "001": Paper("cuda_graphs", True),
    "002": Paper("decoding_graphs", False),
    "003": Paper("beam_search", True),
    "004": Paper("factorized", False),
}


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status, 1 if a paper failed."""
    chosen = parser().parse_args(arguments)
    if chosen.child:
        measure(*chosen.child)
        return 0
    if chosen.page:
        write_page(json.loads(chosen.json.read_text(encoding="utf-8")))
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
            if chosen.json == RESULT:
                write_page(document)
        progress(f"{paper}: {'done' if part else 'failed'} after {time.monotonic() - started_s:.0f} s")
    return int(bool(failed))


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.papers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = found.add_argument
    add(
        "--papers",
        type=partial(_names, PAPERS),
        default=list(PAPERS),
        metavar="N,...",
        help=f"of {','.join(PAPERS)} (all)",
    )
    add("--quick", action="store_true", help="small sizes: some minutes; the times mean little")
    add("--device", default="cpu", help="cpu or cuda (cpu)")
    add("--shapes", type=partial(_names, SHAPES), metavar="N,...", help=f"of {','.join(SHAPES)} (114M; all on a GPU)")
    add("--manifest", type=Path, default=BUNDLED, help="recordings with texts (six of the repository)")
    add("--train", type=Path, help="recordings to train on, with texts; without them some rows are missing")
    add("--work", type=Path, default=Path("build/papers"), metavar="DIR", help="folder for files (build/papers)")
    add("--json", type=Path, default=RESULT, metavar="FILE", help=f"the result ({RESULT}, and the page)")
    add("--oracle-python", metavar="PYTHON", help="interpreter with NeMo, whose searches are then measured, too")
    add("--threads", type=int, default=1, help="CPU threads (1)")
    add("--page", action="store_true", help="only write the page")
    add("--child", nargs=4, help=argparse.SUPPRESS)
    return found


def _names(accepted: Collection[str], text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in accepted]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}; accepted: {', '.join(accepted)}")
    return names


def _settings(chosen: argparse.Namespace) -> Settings:
    shapes = tuple(chosen.shapes or (["114M"] if chosen.device == "cpu" else SHAPES))
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
    command = [python, "-m", "benchmarks.papers", "--child", paper, settings.dump(), str(result), _command()]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, check=False)
    return json.loads(result.read_text(encoding="utf-8")) if done.returncode == 0 else None


def measure(paper: str, settings: str, result: str, command: str) -> None:
    """Runs in a child: writes the rows as they come, so that a run that ends early keeps what it has."""
    chosen = Settings.load(settings)
    prepare_process(chosen.threads)
    document = environment(chosen.threads, chosen.device) | {"command": command, "rows": []}
    for row in PAPERS[paper].module().rows(chosen):
        document["rows"].append(row)
        write_report(Path(result), document)
    write_report(Path(result), document)


def _command() -> str:
    return " ".join(["python -m benchmarks.papers", *sys.argv[1:]])


def generated(paper: str, part: dict) -> str:
    """The tables of one paper, what was not measured and why, then date and commit."""
    rows = part["rows"]
    parts = [_wrapped(part) for table in PAPERS[paper].module().tables(rows) for part in table.split("\n\n")]
    reasons = dict.fromkeys(row["unavailable"] for row in rows if "unavailable" in row)
    missing = f" Not measured: {'; '.join(reasons)}." if reasons else ""
    parts.append(_wrapped(f"{part['date']}, commit {part['commit']}.{missing}"))
    return "\n\n".join(parts)


def conditions(document: dict) -> str:
    """Command, machine and versions: a line for all papers that have these in common."""
    groups: dict[tuple, list[str]] = {}
    for paper, part in document.items():
        groups.setdefault(tuple(part[name] for name in ("command", "hardware", "device", "threads")), []).append(paper)
    lines = []
    for (command, hardware, device, threads), papers in groups.items():
        versions: dict[str, set[str]] = {}
        for paper in papers:
            for name, version in document[paper]["packages"].items():
                versions.setdefault(name, set()).add(version)
        packages = ", ".join(f"{name} {' or '.join(sorted(found))}" for name, found in versions.items())
        load = max(document[paper]["load_average_before"] for paper in papers)
        which = "" if len(groups) == 1 else f"{', '.join(papers)}: "
        lines.append(_wrapped(f"{which}`{command}`: {hardware}; {device}, threads: {threads}; {packages}; load before "
                              f"at most {load:.1f}."))  # fmt: skip
    return "\n\n".join(lines)


def _wrapped(text: str) -> str:
    """Prose in lines that a document may have; a table without padding."""
    if text.startswith("|"):
        return without_padding(text)
    return textwrap.fill(text, _COLUMNS, break_long_words=False, break_on_hyphens=False)


def up_to_date(document: dict, text: str) -> str:
    """The page's text with its generated parts as they should be; papers that were not run keep theirs.

    A paper without a place on the page is in the JSON alone.
    """
    shown = {paper: part for paper, part in document.items() if f": {paper} -->" in text}
    parts = {paper: f"\n{generated(paper, part)}\n\n" for paper, part in shown.items()}
    parts["conditions"] = f"\n{conditions(document)}\n\n"
    return replace_parts(text, "benchmarks/papers", parts)


def write_page(document: dict) -> None:
    """Writes the page."""
    path = ROOT / PAGE
    path.write_text(up_to_date(document, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
