"""Every work has its turn in every round, in changing order; only rounds that count are counted."""

import pytest

from penstock.benchmarking import stopwatch
from penstock.benchmarking.stopwatch import Spread, paired_ratio, take_turns


def test_spread():
    assert Spread.of([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert Spread.of([4.0]) == (4.0, 4.0, 4.0)


def test_a_ratio_is_paired_by_rounds():
    slow_meanwhile = (1.0, 10.0, 1.0, 10.0, 1.0)
    a_fifth_more = (1.2, 12.0, 1.2, 12.0, 1.2)
    assert paired_ratio(a_fifth_more, slow_meanwhile) == pytest.approx(1.2)
    assert paired_ratio((1.0, 1.0, 4.0), (1.0, 2.0, 2.0)) == 1.0
    with pytest.raises(ValueError):
        paired_ratio((1.0, 2.0), (1.0,))


def test_rounds(monkeypatch):
    calls: list[str] = []
    monkeypatch.setattr(stopwatch, "_time_on_host", lambda work: (float(len(calls)), work()))
    works = {name: lambda name=name: calls.append(name) or f"{name}{len(calls)}" for name in "abc"}
    timed = take_turns(works, repeats=5, warm_up_rounds=2, device="cpu")
    rounds = [calls[i : i + 3] for i in range(0, len(calls), 3)]
    assert len(rounds) == 7
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds)
    assert len(set(map(tuple, rounds))) > 1, "the order changes"
    for name in "abc":
        turns = [i for i, called in enumerate(calls) if called == name][2:]
        assert timed[name].seconds == (turns[2], turns[0], turns[-1])
        assert timed[name].rounds_s == tuple(turns)
        assert timed[name].result == f"{name}{turns[-1] + 1}", "of the last repeat"


def test_seconds_pass():
    seconds = take_turns({"sum": lambda: sum(range(1000))}, 3, 0, "cpu")["sum"].seconds
    assert 0 < seconds.least <= seconds.median <= seconds.most


def test_an_error_is_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        take_turns({"fails": lambda: 1 / 0}, 1, 0, "cpu")
