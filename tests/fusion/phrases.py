"""Phrase lists whose words are numbers, sequences in which they are heard, and what a search adds up along them."""

import random
from collections.abc import Sequence

import torch

from penstock.fusion.automaton import Automaton
from penstock.fusion.phrase_list import PhraseList
from tests.reference.phrase_boost import boosted_total

Boosts = dict[tuple[int, ...], float]


class NumberTokenizer:
    """The text "3 12" is the labels 3 and 12. Stands in for `penstock.tokenizer.Tokenizer`."""

    unknown = -1

    def __init__(self, continues_word: Sequence[bool]):
        self.continues_word = list(continues_word)
        self.size = len(self.continues_word)

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def piece(self, token: int) -> str:
        return "x" if self.continues_word[token] else " x"


def as_list(boosts: Boosts) -> PhraseList:
    return PhraseList((" ".join(map(str, phrase)), boost) for phrase, boost in boosts.items())


def random_tokenizer(chance: random.Random, size: int) -> NumberTokenizer:
    share = chance.choice([0.0, 0.3, 0.6])
    return NumberTokenizer([chance.random() < share for _ in range(size)])


def random_boosts(chance: random.Random, size: int, most: int = 40) -> Boosts:
    """Phrases of 1 to 5 labels, many of them parts of others."""
    boosts: Boosts = {}
    for _ in range(chance.randint(1, most)):
        phrase = tuple(chance.randrange(size) for _ in range(chance.randint(1, 5)))
        if boosts and chance.random() < 0.4:
            phrase = (chance.choice(list(boosts)) + phrase)[-5:]
        boosts[phrase] = chance.uniform(-2, 3)
    return boosts


def random_labels(chance: random.Random, size: int, boosts: Boosts, length: int = 30) -> list[int]:
    """Phrases, beginnings of phrases and noise, one behind the other."""
    phrases, labels = list(boosts), []
    while len(labels) < length:
        phrase = chance.choice(phrases) if phrases and chance.random() < 0.7 else (chance.randrange(size),)
        labels += phrase[: chance.randint(1, len(phrase))]
    return labels[:length]


def totals_along(boost: Automaton, starts: list[int], labels: list[list[int]]) -> torch.Tensor:
    """[B, U + 1] float64: what each row's first 0 .. U labels are worth if the stream ends there."""
    columns = torch.tensor(labels).unbind(1)
    states = torch.tensor(starts)
    running = torch.zeros(len(starts), dtype=torch.float64)
    totals = [running + boost.final_scores(states)]
    for column in columns:
        arcs = boost.advance(states, column)
        running, states = running + arcs.scores, arcs.next_states
        totals.append(running + boost.final_scores(states))
    return torch.stack(totals, dim=1)


def expected_totals(labels: list[int], boosts: Boosts, continues_word: Sequence[bool]) -> torch.Tensor:
    """The same of one row by the reference."""
    prefixes = [labels[:count] for count in range(len(labels) + 1)]
    return torch.tensor([boosted_total(prefix, boosts, continues_word) for prefix in prefixes], dtype=torch.float64)
