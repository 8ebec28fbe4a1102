"""`penstock compare`: a paired bootstrap, the utterances that changed, and reports that do not belong together."""

import json
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.evaluation.manifest import Utterance
from penstock.evaluation.report import Conditions, report_document
from penstock.evaluation.runs import GREEDY, Outcome, Variant, collect, parse_decoder

TEXTS = ["one two three four", "five six", "seven", ""]
CONDITIONS = Conditions("a machine", 1, ["test.jsonl"], {"path": "model"})


def document(*runs: list[str | None], conditions: Conditions = CONDITIONS, texts: list[str] = TEXTS) -> dict:
    """A report with a run per list of hypotheses, None for a failure: greedy, then a beam search."""
    utterances = [Utterance(Path(f"{i}.wav"), 1.0, text, Path("m"), i + 1) for i, text in enumerate(texts)]
    results = [
        collect(
            Variant(None, decoder),
            utterances,
            [Outcome(i, t or "", None if t is not None else "lost") for i, t in enumerate(found)],
        )
        for decoder, found in zip((GREEDY, parse_decoder("alsd:beam=2")), runs, strict=False)
    ]
    return report_document(conditions, results)


@pytest.fixture
def compare(tmp_path, capsys):
    def run(a: object, b: object, *more: str) -> tuple[int, str, str]:
        for name, content in (("a.json", a), ("b.json", b)):
            (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        status = main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), *more])
        return status, *capsys.readouterr()

    return run


def test_the_difference_and_what_changed(compare):
    a, b = document(["one two", "five six", "x", "oh"]), document(["one two three four", "five", "x", ""])
    status, out, _ = compare(a, b)
    assert status == 0
    assert "3 utterances with speech, 7 words, normalizer none" in out
    assert "WER 42.86 % -> 28.57 %: -14.29 points, 95 % interval -50.00 to +50.00" in out
    assert "B is better in" in out
    assert "changed: 3; with fewer errors: 2, with more: 1" in out
    assert out.index("-2  0.wav of line 1") < out.index("+1  1.wav of line 2")
    assert "    A          five six\n    B          five\n" in out
    assert "\n2 more: --limit 3\n" in compare(a, b, "--limit", "1")[1]
    same = compare(a, a)[1]
    assert "+0.00 points, 95 % interval +0.00 to +0.00" in same and "better in 0.0 %, worse in 0.0 %" in same


def test_runs_are_paired_and_failures_left_out(compare):
    good = ["one two three four", "five six", "seven", ""]
    both, lost = document(good, good), document([None, "five", "seven", ""], good)
    out = compare(both, lost)[1]
    assert out.count("A  /") == 2 and "greedy\n" in out
    assert "left out: 1 utterances that failed in A or B\n2 utterances with speech, 3 words" in out
    assert compare(document(good), both)[1].count("A  /") == 2, "one run with each"
    other = deepcopy(lost)
    for result in other["results"]:
        result["decoder"] = result["decoder"] + ",lm_weight=1"
    status, _, err = compare(both, other)
    assert status == 1 and "no run in common: " in err and "a.json has greedy, alsd:beam=2; " in err
    assert "accepted: equal contexts and decoders" in err
    status, _, err = compare(both | {"results": []}, both)
    assert status == 1 and "ValueError: has no results; accepted: a report of" in err


OTHER_SET = document(["x"], conditions=replace(CONDITIONS, manifests=["dev.jsonl"]), texts=["a"])


@pytest.mark.parametrize(
    ("b", "message"),
    [
        (OTHER_SET, r"different sets: .*a.json has test.jsonl \(4 .*\); .*b.json has dev.jsonl \(1 utterances\)"),
        (document(["x"] * 3, texts=TEXTS[:3]), r"different sets: .*\(4 utterances\); .*\(3 utterances\)"),
        (document(["x"] * 4) | {"normalizer": "basic"}, "different normalizers: .* has none; .*b.json has basic"),
        (document(["x"] * 4) | {"version": 2}, "version 2; accepted: a report of `penstock evaluate --json`"),
        ("{}\n{}", "b.json: JSONDecodeError: .*; accepted: a report"),
        ("[]", "b.json: TypeError"),
        ("{}", "b.json: KeyError"),
    ],
)
def test_reports_that_do_not_belong_together(compare, b, message):
    status, out, err = compare(document(["x"] * 4), b)
    assert (status, out) == (1, "")
    assert re.search(f"SETTING_INVALID: .*{message}", err), err
