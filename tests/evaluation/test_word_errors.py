"""Counts against the obvious edit distance, and what is true of every alignment."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.evaluation.word_errors import EditCounts, compare, normalise, total
from tests.evaluation.reference_edits import edit_distance

WORDS = st.lists(st.sampled_from(["a", "b", "eight", "eighty", "naïve", "'s"]), max_size=8).map(" ".join)


@given(WORDS, WORDS)
def test_edits_are_the_least_there_can_be(reference, hypothesis):
    errors = compare(reference, hypothesis)
    assert errors.words.edits == edit_distance(reference.split(), hypothesis.split())
    assert errors.characters.edits == edit_distance(reference, hypothesis)
    assert errors.words.reference_units == len(reference.split())
    assert errors.characters.reference_units == len(reference)


@given(WORDS, WORDS)
def test_words_that_went_wrong_are_those_counted(reference, hypothesis):
    errors = compare(reference, hypothesis)
    words = errors.words
    assert len(errors.substituted) == words.substitutions
    assert (len(errors.deleted), len(errors.inserted)) == (words.deletions, words.insertions)
    assert all(spoken != heard for spoken, heard in errors.substituted)
    spoken = sorted(reference.split())
    for word in [*errors.deleted, *(spoken for spoken, _ in errors.substituted)]:
        spoken.remove(word)
    heard = sorted(hypothesis.split())
    for word in [*errors.inserted, *(heard for _, heard in errors.substituted)]:
        heard.remove(word)
    assert spoken == heard, "what is left is equal"


def test_one_of_each_kind():
    errors = compare("one two three", "one too three four")
    assert (errors.substituted, errors.inserted, errors.deleted) == ((("two", "too"),), ("four",), ())
    errors = compare("one two three", "one three")
    assert (errors.substituted, errors.inserted, errors.deleted) == ((), (), ("two",))


def test_runs_of_wrong_words_are_paired_one_by_one():
    assert compare("a b c d", "a x y d").substituted == (("b", "x"), ("c", "y"))


def test_an_empty_reference_makes_every_word_an_insertion():
    errors = compare(" ", "Four  four")
    assert (errors.words, errors.inserted) == (EditCounts(insertions=2), ("four", "four"))
    assert errors.words.rate is None


def test_only_case_and_white_space_are_normalised():
    assert normalise("  It's\tNINE,\n nine ") == "it's nine, nine"
    assert compare("It's NINE", "it's  nine").words.edits == 0
    assert compare("nine,", "nine").words.edits == 1


def test_counts_add_up():
    counts = [EditCounts(1, 2, 3, 10), EditCounts(0, 1, 0, 6)]
    assert total(counts) == EditCounts(1, 3, 3, 16)
    assert total(counts).rate == 7 / 16
    assert total([]).rate is None
