"""Lists are refused by name, and equal where they ask for the same."""

import math

import pytest

from penstock.errors import StreamError, StreamErrorKind
from penstock.fusion.phrase_list import LARGEST_BOOST, LONGEST_PHRASE_CHARACTERS, MOST_PHRASES, PhraseList

REFUSED = [
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
    ([("york \ud800", 1.0)], "half of a surrogate pair"),
    (
        [("new york", 1.0), ("x", 1.0), (" new  york", 2.0)],
        r"phrase 3 \('new york'\) is given twice, with boosts 1 and 2",
    ),
]


@pytest.mark.parametrize(("phrases", "message"), REFUSED)
def test_a_bad_phrase_is_named(phrases, message):
    with pytest.raises(StreamError, match=message) as caught:
        PhraseList(phrases)
    assert caught.value.kind is StreamErrorKind.INVALID_ARGUMENT


def test_too_many_phrases_are_refused_before_all_are_read():
    def endless():
        number = 0
        while True:
            number += 1
            yield f"word {number}", 1.0

    with pytest.raises(StreamError, match=f"more than {MOST_PHRASES} phrases; accepted: up to {MOST_PHRASES}"):
        PhraseList(endless())


def test_the_limits_themselves_are_accepted():
    phrases = PhraseList((f"word {number}", 1.0) for number in range(MOST_PHRASES))
    assert len(phrases) == MOST_PHRASES
    limits = PhraseList([("x" * LONGEST_PHRASE_CHARACTERS, LARGEST_BOOST), ("y", -LARGEST_BOOST), ("z", 0)])
    assert [phrase.boost for phrase in limits.phrases] == [100.0, -100.0, 0.0]


def test_order_spaces_and_repetition_do_not_matter():
    first = PhraseList([("new york", 2.0), ("york city", -1.0)])
    second = PhraseList([(" york\tcity ", -1), ("new  york", 2), ("new york", 2.0)])
    assert first == second
    assert first.digest == second.digest
    assert hash(first) == hash(second)
    assert PhraseList([("a", 0.0)]).digest == PhraseList([("a", -0.0)]).digest


def test_different_lists_have_different_digests():
    lists = [[], [("a", 1.0)], [("a", 2.0)], [("b", 1.0)], [("a b", 1.0)], [("a", 1.0), ("b", 1.0)], [("ab", 1.0)]]
    made = [PhraseList(phrases) for phrases in lists]
    assert len({phrases.digest for phrases in made}) == len(lists)
    assert len(set(made)) == len(lists)
