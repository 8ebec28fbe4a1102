"""Plain technical English: code, docs and help texts are free of words that readers of the field would have to decode.

`make check` runs this. docs/glossary.md says which word means what.
"""

import functools
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READ = (".py", ".md", ".yaml", ".toml", ".pbtxt", ".sh", ".json")
LEFT_OUT = (
    "docs/internals/log.md",
    "docs/benchmarks/",
    "tests/golden/",
    "tests/data/",
    "models/",
    "tests/documents/test_words.py",
)
"""History, recorded results, data, and this list."""
ALLOWED = re.compile(r"PENSTOCK_|streams_refused|\.\*refused|[\": ]refused\"|: refused")
"""Protocol names, and the operating system's "connection refused"."""
MAX_DOC_COLUMNS = 120

EDGE = "(?:(?<![a-z])(?=[a-z])|(?<=[a-z])(?![a-z]))"
"""Like \\b, but an underscore separates words."""

WORDS = {
    r"held up|stands? still|standing still": "stalled",
    r"so (many|long|much)\b(?! as)": "N, for t seconds, that amount",
    r"who(so)?ever|\bnobody\b": "name the stream, request or client",
    r"rehears": "warm up",
    r"\bmended?\b|\bmending\b": "fixed",
    r"GPU language|torch twins?|\btwins?\b": "Triton language; PyTorch reference",
    r"(seconds of audio|streams?|requests?|words?|labels|tokens) a second\b": "per second",
    r"\blanes?\b": "stream decoder",
    r"\brefus(e|es|ed|al|als|ing)\b": "reject",
    r"\bC120\b": "maximum sustained streams (120 s)",
    r"\bcontestants?\b|\brivals?\b": "system under test; baseline",
    r"made[- ]up\b": "synthetic",
    r"\bheard_(ns|samples)\b": "received_ns, received_samples",
    r"\bpatience\b|\bimpatien": "stub timeout",
    r"wait(s|ing)? for (company|each other|others)": "batching delay",
    r"feature member|member process|(encoder|decoder) member|model members?\b": "stage, model",
    r"foretell": "perplexity",
    r"\brecognis|\btokenis|\bnormalis(?!ation)|\bsynthesis(e|er|ed)\b": "American spelling: -iz-",
    r"given up\b": "processed; dropped",
    r"\bbooked\b|\bpay(s|ing)? back\b|\bearned\b": "accumulated score, back-off penalty",
    r"\bseal(s|ed)?\b|\bticket_seal": "signature, signed",
    r"pieces? of audio|\bpiece_(ms|samples)\b": "request",
    r"the host takes": "CPU steal",
    r"\bhold(s|ing)? up\b|\bheld up\b": "delay",
    r"stranger|farewell|sign of life|\bdepartures?\b": "the plain term",
    r"hear(s|ing)? more often": "word boosting, boosted phrases",
    r"waiting for each other|\btaken on\b": "batching delay; processed",
    r"(streams|requests) that name none": "default",
    r"\bkept time\b|\bas delivered\b|\bused up\b": "on schedule; by default; bottleneck",
    r"\bdrivers? staged\b|\bbeam losses\b": "no_while_loops; truncation counters",
    r"\d % word errors\b": "WER",
    r"\b[Kk]nows? (nothing|no) .* nor\b": "one fact per sentence",
}


@functools.cache
def texts() -> dict[str, list[str]]:
    """The lines of the files that are read, by name relative to the repository."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    names = [name for name in listed if name.endswith((*READ, "Makefile")) and not name.startswith(LEFT_OUT)]
    return {name: (ROOT / name).read_text(encoding="utf-8").splitlines() for name in names}


@pytest.mark.parametrize("pattern", WORDS)
def test_no_text_has_the_word(pattern: str) -> None:
    candidate = re.compile(pattern.replace(r"\b", ""), re.IGNORECASE)  # finds more, several times as fast
    word = re.compile(pattern.replace(r"\b", EDGE), re.IGNORECASE)
    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, lines in texts().items()
        for number, line in enumerate(lines, start=1)
        if candidate.search(line) and word.search(line) and not ALLOWED.search(line)
    ]
    assert not found, f"use {WORDS[pattern]!r} instead:\n" + "\n".join(found)


def test_lines_of_documents_are_short() -> None:
    """Tables are exempt: a row cannot be broken."""
    long = [
        f"{name}:{number}"
        for name, lines in texts().items()
        if name.endswith(".md")
        for number, line in enumerate(lines, start=1)
        if len(line) > MAX_DOC_COLUMNS and not line.lstrip().startswith(("|", "["))
    ]
    assert not long, "\n".join(long)
