"""Invalid lists are rejected and the phrase is named; lists of the same phrases are equal."""

import math

import pytest

from penstock.errors import StreamError, StreamErrorKind
from penstock.scoring.boosting.phrases import MAX_BOOST, MAX_PHRASE_CHARACTERS, MAX_PHRASES, check_phrases

REJECTED = [
    ([("new york", 1.0), ("", 1.0)], r"phrase 2 \(''\) is empty; accepted: one or more words"),
    ([(" \t\n", 1.0)], r"phrase 1 \(.*\) is empty"),
    ([("x" * 201, 1.0)], r"phrase 1 \('x{40}\.\.\.'\) has 201 characters; accepted: 1 to 200"),
    ([("york", math.nan)], r"phrase 1 \('york'\) has boost nan; accepted: numbers from -100 to 100"),
    ([("york", math.inf)], "has boost inf"),
    ([("york", -math.inf)], "has boost -inf"),
    ([("york", 100.5)], "has boost 100.5"),
    ([("york", -1e300)], "has boost"),
    ([("york", 10**400)], "has boost"),
    ([("york", None)], "has boost None"),
    ([("york", "loud")], "has boost 'loud'"),
    ([("york", "2")], "has boost '2'"),
    ([("york", True)], "has boost True"),
    ([(None, 1.0)], "phrase 1 is NoneType; accepted: text"),
    ([(b"york", 1.0)], "phrase 1 is bytes"),
    ([("york \ud800", 1.0)], "unpaired surrogate"),
    (
        [("new york", 1.0), ("x", 1.0), (" new  york", 2.0)],
        r"phrase 3 \('new york'\) is given twice, with boosts 1 and 2",
    ),
]


@pytest.mark.parametrize(("phrases", "message"), REJECTED)
def test_a_bad_phrase_is_named(phrases, message):
    with pytest.raises(StreamError, match=message) as caught:
        check_phrases(phrases)
    assert caught.value.kind is StreamErrorKind.INVALID_ARGUMENT


def test_too_many_phrases_are_rejected_before_all_are_read():
    def endless():
        number = 0
        while True:
            number += 1
            yield f"word {number}", 1.0

    with pytest.raises(StreamError, match=f"more than {MAX_PHRASES} phrases; accepted: up to {MAX_PHRASES}"):
        check_phrases(endless())


def test_the_limits_themselves_are_accepted():
    phrases = check_phrases((f"word {number}", 1.0) for number in range(MAX_PHRASES))
    assert len(phrases) == MAX_PHRASES
    limits = check_phrases([("x" * MAX_PHRASE_CHARACTERS, MAX_BOOST), ("y", -MAX_BOOST), ("z", 0)])
    assert [phrase.boost for phrase in limits] == [100.0, -100.0, 0.0]


def test_order_spaces_and_repetition_do_not_matter():
    first = check_phrases([("new york", 2.0), ("york city", -1.0)])
    second = check_phrases([(" york\tcity ", -1), ("new  york", 2), ("new york", 2.0)])
    assert first == second
    assert hash(first) == hash(second)
    ((_, boost),) = check_phrases([("a", -0.0)])
    assert math.copysign(1.0, boost) == 1.0
