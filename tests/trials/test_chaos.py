"""`trials/chaos.py`: the seed repeats the schedule, runs add up, and what counts as a failure; no server."""

import numpy as np
import pytest

from trials.server.fleet_streams import Stream

WORDS = [("one", 0, 100), ("nine", 500, 600), ("two", 900, 1000)]


@pytest.mark.parametrize(
    ("told", "changed"),
    [
        (WORDS, 0),
        ([WORDS[0], ("ninety", 520, 640), WORDS[2]], 1),
        (WORDS[:2], None),
        ([*WORDS, WORDS[2]], None),
        ([WORDS[0], *WORDS], None),
        ([WORDS[1], WORDS[0], WORDS[2]], None),
        ([(f"other {word}", start, end) for word, start, end in WORDS], None),
        ([], None),
    ],
    ids=["equal", "changed", "lost", "repeated", "repeated first", "order", "another stream", "none"],
)
def test_words_are_told_once_in_order(told, changed):
    stream = Stream("segments", np.zeros(0, np.int16))
    if changed is not None:
        assert stream._check(told, WORDS) == changed
    else:
        with pytest.raises(AssertionError, match="segments: word "):
            stream._check(told, WORDS)
