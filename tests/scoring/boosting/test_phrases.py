"""Lists of the same phrases are equal; a phrase with two boosts is rejected by name."""

import math

import pytest

from penstock.errors import ErrorCode, StreamError
from penstock.scoring.boosting.phrases import merge_phrases


def test_a_phrase_with_two_boosts_is_named():
    with pytest.raises(StreamError, match=r"phrase 3 \('new york'\) is given twice, with boosts 1 and 2") as caught:
        merge_phrases([("new york", 1.0), ("x", 1.0), (" new  york", 2.0)])
    assert caught.value.code is ErrorCode.PHRASES_INVALID


def test_order_spaces_and_repetition_do_not_matter():
    first = merge_phrases([("new york", 2.0), ("york city", -1.0)])
    second = merge_phrases([(" york\tcity ", -1), ("new  york", 2), ("new york", 2.0)])
    assert first == second
    assert hash(first) == hash(second)
    ((_, boost),) = merge_phrases([("a", -0.0)])
    assert math.copysign(1.0, boost) == 1.0
