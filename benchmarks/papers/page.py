"""Writes the generated tables of docs/papers.md from the JSON of a run."""

import textwrap
from pathlib import Path

from benchmarks.generated_text import replace_parts
from benchmarks.papers.one import PAPERS
from benchmarks.results import ROOT

PAGE, RESULT = Path("docs/papers.md"), Path("docs/benchmarks/papers.json")
_COLUMNS = 120


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
    """Prose in lines that a document may have; a table as it is."""
    if text.startswith("|"):
        return text
    return textwrap.fill(text, _COLUMNS, break_long_words=False, break_on_hyphens=False)


def up_to_date(document: dict, text: str) -> str:
    """The page's text with its generated parts as they should be; papers that were not run keep theirs.

    A paper without a place on the page is in the JSON alone.
    """
    shown = {paper: part for paper, part in document.items() if f": {paper} -->" in text}
    parts = {paper: f"\n{generated(paper, part)}\n\n" for paper, part in shown.items()}
    parts["conditions"] = f"\n{conditions(document)}\n\n"
    return replace_parts(text, "benchmarks/papers", parts)


def write(document: dict) -> None:
    """Writes the page."""
    path = ROOT / PAGE
    path.write_text(up_to_date(document, path.read_text(encoding="utf-8")), encoding="utf-8")
