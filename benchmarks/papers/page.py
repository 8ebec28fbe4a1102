"""Writes the generated tables of docs/papers.md from the JSON of a run."""

import textwrap
from pathlib import Path

from benchmarks.generated_text import replace_parts
from benchmarks.papers.one import PAPERS
from benchmarks.results import ROOT, describe

PAGE, RESULT = Path("docs/papers.md"), Path("docs/benchmarks/papers.json")
_COLUMNS = 120


def generated(paper: str, part: dict) -> str:
    """The tables of one paper, then hardware, date, commit and command."""
    rows = part["rows"]
    parts = [_wrapped(part) for table in PAPERS[paper].module().tables(rows) for part in table.split("\n\n")]
    reasons = dict.fromkeys(f"{_name(row)}: {row['unavailable']}" for row in rows if "unavailable" in row)
    if reasons:
        parts.append("Not measured:\n\n" + "\n".join(_wrapped(f"- {reason}", "  ") for reason in reasons))
    parts.append(_wrapped(f"`{part['command']}`: {describe(part)}."))
    return "\n\n".join(parts)


def _wrapped(text: str, indent: str = "") -> str:
    """Prose in lines that a document may have; a table as it is."""
    if text.startswith("|"):
        return text
    return textwrap.fill(text, _COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _name(row: dict) -> str:
    return " ".join(str(row[name]) for name in ("kind", "model", "variant") if row.get(name)) or row["decoder"]


def up_to_date(document: dict, text: str) -> str:
    """The page's text with its generated parts as they should be; papers that were not run keep theirs."""
    parts = {paper: f"\n{generated(paper, part)}\n\n" for paper, part in document.items()}
    return replace_parts(text, "benchmarks/papers", parts)


def write(document: dict) -> None:
    """Writes the page."""
    path = ROOT / PAGE
    path.write_text(up_to_date(document, path.read_text(encoding="utf-8")), encoding="utf-8")
