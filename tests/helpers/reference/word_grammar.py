"""Costs of word sequences in a back-off model where a search may also back off from an n-gram that is there."""

import math

from tests.helpers.reference.ngram import NgramReference


class WordGrammar:
    """The least cost over all ways to back off, as a path through G has it, in nats."""

    def __init__(self, lm: NgramReference):
        self._lm = lm
        ngrams = set(lm.probabilities)
        self._contexts = {ngram[:length] for ngram in ngrams for length in range(len(ngram))}
        self._known: dict[tuple[tuple[str, ...], int], float] = {}
        self._contexts |= {ngram for ngram in ngrams if len(ngram) < lm.order}

    def cost(self, words: tuple[str, ...]) -> float:
        """The cost of a whole sentence, from <s> to </s>."""
        self._known = {}
        start = ("<s>",) if self._lm.order > 1 else ()
        return -math.log(10) * self._best(start, (*words, "</s>"))

    def _best(self, context: tuple[str, ...], words: tuple[str, ...]) -> float:
        """log10; -inf where there is no way."""
        if not words:
            return 0.0
        key = (context, len(words))
        if key not in self._known:
            self._known[key] = self._best_of_ways(context, words)
        return self._known[key]

    def _best_of_ways(self, context: tuple[str, ...], words: tuple[str, ...]) -> float:
        ngram = (*context, words[0])
        ways = [self._lm.backoffs.get(context, 0.0) + self._best(self._suffix(context), words)] if context else []
        if words[0] == "</s>":
            ways += [self._lm.probabilities[ngram]] if ngram in self._lm.probabilities else []
        elif ngram in self._lm.probabilities or ngram in self._contexts:
            score = self._lm._score(ngram)
            ways.append(score + self._best(self._longest(ngram), words[1:]))
        return max(ways, default=-math.inf)

    def _suffix(self, context: tuple[str, ...]) -> tuple[str, ...]:
        return self._longest(context[1:])

    def _longest(self, ngram: tuple[str, ...]) -> tuple[str, ...]:
        while ngram not in self._contexts:
            ngram = ngram[1:]
        return ngram
