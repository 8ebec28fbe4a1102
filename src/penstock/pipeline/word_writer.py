"""Words of a decoding graph whose lexicon spells them with other tokens than their text, such as "IBM" by letters."""

from collections.abc import Sequence

from penstock.model.tokenizer import Tokenizer
from penstock.scoring.wfst.graph_file import DecodingGraph


class WordWriter:
    """Deals the tokens of a path to its words."""

    def __init__(self, graph: DecodingGraph):
        self._graph = graph

    def texts(self, tokens: Sequence[int], words: Sequence[int], is_final: bool) -> tuple[list[str], int]:
        """What each token adds to the text: a word at its first token, else nothing.

        words: of the path, in order; a word may come up later than its tokens. Also returns how many tokens will keep
        their text: those of all words but the last, to which more tokens may come; all where `is_final`.
        """
        counts = self._counts(tokens, words) or [len(self._graph.spellings(word)[0]) for word in words]
        texts = [""] * len(tokens)
        place = known = 0
        for word, count in zip(words, counts, strict=True):
            known = place
            if place < len(texts):
                texts[place] = " " + self._graph.words[word]
            place += count
        return texts, len(tokens) if is_final else min(known, len(tokens))

    def _counts(self, tokens: Sequence[int], words: Sequence[int]) -> list[int] | None:
        """Tokens of each word by a spelling of it, so that all fit one after the other; None if none do."""
        if not words:
            return []
        for spelling in sorted(self._graph.spellings(words[0]), key=len, reverse=True):
            here = list(tokens[: len(spelling)])
            is_whole = len(here) == len(spelling)
            if here and here == spelling[: len(here)] and (is_whole or len(words) == 1):
                rest = self._counts(tokens[len(spelling) :], words[1:])
                if rest is not None:
                    return [len(spelling), *rest]
        return None


def word_writer(graph: DecodingGraph, tokenizer: Tokenizer) -> WordWriter | None:
    """A writer where a word's text differs from that of its tokens; None where tokens write all words."""
    for number, word in enumerate(graph.words[1:], start=1):
        if any(tokenizer.decode(spelling) != word for spelling in graph.spellings(number)):
            return WordWriter(graph)
    return None
