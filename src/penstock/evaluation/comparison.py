"""Compares two reports of `penstock evaluate --json` on the same recordings: a paired bootstrap, and what changed."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock.errors import SettingError, shown
from penstock.evaluation.errors import RESAMPLES, SEED, bootstrap_rates, interval_of
from penstock.evaluation.report import FORMAT, FORMAT_VERSION


class Scored(NamedTuple):
    """An utterance of a report."""

    name: str
    """The file and the line; folders differ between machines."""
    reference: str | None
    """None if it failed."""
    hypothesis: str = ""
    edits: int = 0
    words: int = 0
    """Words of the reference."""


@dataclass(frozen=True)
class Run:
    """One run of a report."""

    report: str
    variant: str
    """Context and decoder."""
    normalizer: str
    manifests: str
    utterances: list[Scored]


@contextmanager
def open_report(path: Path) -> Iterator[dict]:
    """The content of a report; raises SettingError for a file that is none, also for fields that the reader misses."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if (document["format"], document["version"]) != (FORMAT, FORMAT_VERSION):
            raise ValueError(f"format {shown(document['format'])}, version {shown(document['version'])}")
        yield document
    except OSError as error:
        raise SettingError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        accepted = f"accepted: a report of `penstock evaluate --json`, version {FORMAT_VERSION}"
        raise SettingError(f"{path}: {type(error).__name__}: {error}; {accepted}") from error


def read_runs(path: Path) -> list[Run]:
    """The runs of a report; raises as `open_report`."""
    with open_report(path) as document:
        runs = []
        for result in document["results"]:
            variant = " ".join(str(each) for each in (result["context"], result["decoder"]) if each) or "server"
            utterances = [_scored(each) for each in result["utterances"]]
            manifests = ", ".join(document["manifests"])
            runs.append(Run(str(path), variant, document["normalizer"], manifests, utterances))
        if not runs:
            raise ValueError("has no results")
        return runs


def _scored(entry: dict) -> Scored:
    name = f"{Path(entry['audio']).name} of line {entry['line']}"
    if "error" in entry:
        return Scored(name, None)
    edits = entry["substitutions"] + entry["deletions"] + entry["insertions"]
    return Scored(name, entry["reference"], entry["hypothesis"], int(edits), int(entry["words"]))


def pair_runs(first: Sequence[Run], second: Sequence[Run]) -> list[tuple[Run, Run]]:
    """A single run with each of the other report, else runs of the same context and decoder; raises SettingError."""
    pairs = [(a, b) for a in first for b in second if 1 in (len(first), len(second)) or a.variant == b.variant]
    if not pairs:
        names = [", ".join(run.variant for run in runs) for runs in (first, second)]
        found = f"{first[0].report} has {names[0]}; {second[0].report} has {names[1]}"
        raise SettingError(f"no run in common: {found}; accepted: equal contexts and decoders, or a report of one run")
    for a, b in pairs:
        _check_same_set(a, b)
    return pairs


def _check_same_set(a: Run, b: Run) -> None:
    if a.normalizer != b.normalizer:
        raise SettingError(f"different normalizers: {a.report} has {a.normalizer}; {b.report} has {b.normalizer}")
    sets = "; ".join(f"{run.report} has {run.manifests} ({len(run.utterances)} utterances)" for run in (a, b))
    for one, two in zip_longest(a.utterances, b.utterances):
        if None in (one, two):
            raise SettingError(f"different sets: {sets}")
        if one.name != two.name or (None not in (one.reference, two.reference) and one.reference != two.reference):
            raise SettingError(f"different sets: {sets}; the first that differs: {one.name}, {two.name}")


def render_comparison(a: Run, b: Run, limit: int) -> str:
    """Both WERs, the interval of their difference, and the first `limit` utterances whose hypothesis changed."""
    both = list(zip(a.utterances, b.utterances, strict=True))
    pairs = [(one, two) for one, two in both if one.reference is not None and two.reference is not None]
    spoken = [(one, two) for one, two in pairs if one.words]
    lines = [f"A  {a.report}: {a.variant}", f"B  {b.report}: {b.variant}"]
    if len(both) > len(pairs):
        lines.append(f"left out: {len(both) - len(pairs)} utterances that failed in A or B")
    words, change = [one.words for one, _ in spoken], [two.edits - one.edits for one, two in spoken]
    lines.append(f"{len(spoken)} utterances with speech, {sum(words)} words, normalizer {a.normalizer}")
    if spoken:
        before, after = (100 * sum(one.edits for one in side) / sum(words) for side in zip(*spoken, strict=True))
        rates = bootstrap_rates(change, words)
        interval = interval_of(rates)
        lines += [
            f"WER {before:.2f} % -> {after:.2f} %: {after - before:+.2f} points,"
            f" 95 % interval {100 * interval.low:+.2f} to {100 * interval.high:+.2f}",
            f"paired bootstrap over utterances, {RESAMPLES} samples, seed {SEED}:"
            f" B is better in {100 * np.mean(rates < 0):.1f} %, worse in {100 * np.mean(rates > 0):.1f} %",
        ]
    changed = [(one, two) for one, two in pairs if one.hypothesis != two.hypothesis]
    changed.sort(key=lambda pair: -abs(pair[1].edits - pair[0].edits))
    better, worse = (sum(sign * (two.edits - one.edits) > 0 for one, two in changed) for sign in (-1, 1))
    lines.append(f"changed: {len(changed)}; with fewer errors: {better}, with more: {worse}")
    for one, two in changed[:limit]:
        lines += ["", f"{two.edits - one.edits:+d}  {one.name}", f"    reference  {one.reference}"]
        lines += [f"    A          {one.hypothesis}", f"    B          {two.hypothesis}"]
    more = [f"\n{len(changed) - limit} more: --limit {len(changed)}"] if len(changed) > limit else []
    return "\n".join(lines + more)
