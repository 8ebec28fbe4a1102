"""The words of a decoding graph: how phrases over them are spelled, and boosts of words by stream."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

from penstock.scoring.boosting.phrases import Phrase, TokenPhrases, phrases_error, shorten, unique_phrases
from penstock.scoring.wfst.graph_file import DecodingGraph, Topology, read_graph
from penstock_common.phrases import written_forms

_NAMED = 5


class GraphWords:
    """Words with their primary spellings; the searches' other arrays are not kept."""

    def __init__(self, graph: DecodingGraph):
        self.topology: Topology = graph.topology
        first = graph.spelling_words[1:-1]  # the primary spelling of each word but 0
        self._tokens = graph.spelling_tokens
        self._starts, self._ends = graph.spelling_offsets[first], graph.spelling_offsets[first + 1]
        self._numbers = {word: number for number, word in enumerate(graph.words)}
        self._alphabet = frozenset("".join(graph.words[1:]))

    def spelling(self, word: int) -> tuple[int, ...]:
        """Tokens of word 1 .. W - 1."""
        return tuple(self._tokens[self._starts[word - 1] : self._ends[word - 1]].tolist())

    def tokenize(self, phrases: Sequence[Phrase], ignores_unknown: bool = False) -> TokenPhrases:
        """The phrases as tokens. StreamError PHRASES_INVALID names words that the graph lacks, or rejects the list.

        With `ignores_unknown` a phrase counts in all of its `written_forms`; one that has none is left out.

        A compact graph takes a held piece for the same word again on every frame, and each would earn the boost.
        """
        boosted = next((phrase for phrase in phrases if phrase.boost > 0), None)
        if boosted is not None and self.topology == "compact":
            raise phrases_error(
                f"{shorten(boosted.text)} has boost {boosted.boost:g}, and the graph's topology is compact; accepted: "
                "boosts up to 0, or a server with a graph of topology normal"
            )
        if ignores_unknown:
            return unique_phrases(phrases, self._forms_tokens, ignores_unknown)
        words = (word for phrase in phrases for word in phrase.text.split())
        unknown = list(dict.fromkeys(word for word in words if not self._numbers.get(word)))
        if unknown:
            names = ", ".join(map(shorten, unknown[:_NAMED])) + (" and others" if len(unknown) > _NAMED else "")
            raise phrases_error(f"{names} not in the decoding graph; accepted: words of the graph")
        return unique_phrases(phrases, self._tokens_of)

    def _tokens_of(self, text: str) -> list[tuple[int, ...]]:
        return [tuple(token for word in text.split() for token in self.spelling(self._numbers[word]))]

    def _forms_tokens(self, text: str) -> list[tuple[int, ...]]:
        forms = written_forms(text, self._alphabet)
        return [each for form in forms if all(map(self._numbers.get, form.split())) for each in self._tokens_of(form)]


def read_words(path: str | Path) -> GraphWords:
    """Reads the words of a graph; GraphError as from `read_graph`."""
    return GraphWords(read_graph(path))


class WordBoosts:
    """Boosts of single words, a row for each slot."""

    def __init__(self, words: GraphWords, count: int, slots: int, device: torch.device | str = "cpu"):
        """count: words of the graph, W."""
        self.table = torch.zeros(slots, count, dtype=torch.float32, device=device)
        """[S, W], added to the score of each word: the boost times the word's tokens."""
        self._words_of: dict[tuple[int, ...], list[int]] = {}
        for word in range(1, count):
            self._words_of.setdefault(words.spelling(word), []).append(word)
        self._is_used = [False] * slots

    def open(self, slot: int, phrases: TokenPhrases) -> bool:
        """Writes a stream's boosts if each phrase is one word; False, and none, where some phrase is not."""
        self.close(slot)
        if not all(phrase.tokens in self._words_of for phrase in phrases):
            return False
        row = np.zeros(self.table.shape[1], np.float32)
        for tokens, boost in phrases:
            row[self._words_of[tokens]] = boost * len(tokens)
        if phrases:
            self.table[slot].copy_(torch.from_numpy(row))
            self._is_used[slot] = True
        return True

    def close(self, slot: int) -> None:
        """Ends the boosts of a slot's stream."""
        if self._is_used[slot]:
            self.table[slot].zero_()
            self._is_used[slot] = False

    def is_used(self, slots: Iterable[int]) -> bool:
        """True where a stream in `slots` boosts words."""
        return any(self._is_used[slot] for slot in slots)

    def row(self, slot: int) -> np.ndarray | None:
        """[W], the boosts of a slot's stream on the host; None without any."""
        return self.table[slot].cpu().numpy() if self._is_used[slot] else None
