"""Words of a decoding graph whose lexicon spells them with other tokens than their text, such as "IBM" by letters."""

from collections.abc import Sequence

from penstock.model.tokenizer import Tokenizer
from penstock.scoring.wfst.graph_file import DecodingGraph
from penstock_client.writing import blank_between


class WordWriter:
    """Deals the tokens of a path to its words."""

    def __init__(self, graph: DecodingGraph):
        self._graph = graph

    def texts(self, tokens: Sequence[int], words: Sequence[int], is_final: bool) -> tuple[list[str], int]:
        """The text that each token adds: a word at its first token, else nothing.

        words: of the path, in order; a word may come up later than its tokens. Also returns how many tokens will keep
        their text: those of all words but the last, to which more tokens may come; all where `is_final`.
        """
        counts = self._counts(tokens, words) or [len(self._graph.spellings(word)[0]) for word in words]
        texts = [""] * len(tokens)
        place = known = 0
        before = "a"  # a word of a script with spaces
        for word, count in zip(words, counts, strict=True):
            known = place
            if place < len(texts):
                texts[place] = blank_between(before, self._graph.words[word]) + self._graph.words[word]
                before = self._graph.words[word]
            place += count
        return texts, len(tokens) if is_final else min(known, len(tokens))

    def _counts(self, tokens: Sequence[int], words: Sequence[int]) -> list[int] | None:
        """Tokens of each word by a spelling of it, so that all fit one after the other; None if none do.

        Depth first, the longest spelling first. A path may have thousands of words, so nothing is called recursively,
        and no word is tried twice at one place.
        """
        counts: list[int] = []
        choices: list[list[int]] = []  # of each word, the counts not tried yet
        place = 0
        seen: set[tuple[int, int]] = set()
        while len(counts) < len(words):
            number = len(counts)
            if len(choices) == number:
                choices.append(self._fitting(tokens, place, words[number], number == len(words) - 1))
            if choices[-1]:
                count = choices[-1].pop()
                if (number, place + count) not in seen:
                    seen.add((number, place + count))
                    counts.append(count)
                    place += count
            else:
                choices.pop()
                if not counts:
                    return None
                place -= counts.pop()
        return counts

    def _fitting(self, tokens: Sequence[int], place: int, word: int, is_last: bool) -> list[int]:
        """Lengths of the word's spellings that the tokens at a place are, the longest last; is_last: or begin."""
        lengths = []
        for spelling in self._graph.spellings(word):
            here = list(tokens[place : place + len(spelling)])
            if here and here == spelling[: len(here)] and (is_last or len(here) == len(spelling)):
                lengths.append(len(spelling))
        return sorted(lengths)


def word_writer(graph: DecodingGraph, tokenizer: Tokenizer) -> WordWriter | None:
    """A writer where a word's text differs from that of its tokens; None where tokens write all words."""
    for number, word in enumerate(graph.words[1:], start=1):
        if any(tokenizer.decode(spelling) != word for spelling in graph.spellings(number)):
            return WordWriter(graph)
    return None
