"""`python -m benchmarks.host_budget`: what it puts in place of the numeric work still fits the stages."""

from benchmarks.host_budget import STAGES, measure
from penstock.model.config import AttentionContext


def test_every_stage_has_its_time(bundled_model):
    lines = measure(bundled_model, AttentionContext(70, 6), rows=2, rounds=1)
    assert [line[:2] for line in lines] == [[2, "one chunk"], [2, "no chunk"]]
    assert all(len(line) == len(STAGES) + 3 for line in lines)
