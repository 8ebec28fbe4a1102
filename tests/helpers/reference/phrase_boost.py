"""The score of boosted phrases, computed over a whole label sequence from the left."""

from collections.abc import Mapping, Sequence


def boosted_total(
    labels: Sequence[int], boosts: Mapping[tuple[int, ...], float], continues_word: Sequence[bool]
) -> float:
    """The sum of the bonuses of the phrases in `labels`: leftmost first, longest of those, only at word ends.

    boosts: phrase as labels -> boost for each of them.
    """
    total, position = 0.0, 0
    while position < len(labels):
        here = [
            phrase
            for phrase in boosts
            if tuple(labels[position : position + len(phrase)]) == phrase
            and ends_word(labels, position + len(phrase), continues_word)
        ]
        longest = max(here, key=len, default=None)
        if longest is None:
            position += 1
        else:
            total += boosts[longest] * len(longest)
            position += len(longest)
    return total


def ends_word(labels: Sequence[int], position: int, continues_word: Sequence[bool]) -> bool:
    """True where the label at `position` does not continue the word before it."""
    return position == len(labels) or not continues_word[labels[position]]
