"""Phrase lists whose words are numbers, label sequences that contain them, and the scores along these."""

import random
from collections.abc import Sequence

import numpy as np
import torch

from penstock.scoring.automaton import Automaton
from penstock.scoring.boosting.arena import PAGE_STATES, PhraseArena
from penstock.scoring.boosting.phrases import TokenPhrase, TokenPhrases
from penstock.scoring.boosting.table import PhraseTrie, build_table
from tests.helpers.reference.phrase_boost import boosted_total

Boosts = dict[tuple[int, ...], float]


class NumberTokenizer:
    """A stand-in for `penstock.model.tokenizer.Tokenizer`: the text "3 12" is the labels 3 and 12."""

    unknown = -1
    separator = None
    has_punctuation_and_capitals = False

    def __init__(self, continues_word: Sequence[bool]):
        self.continues_word = list(continues_word)
        self.size = len(self.continues_word)

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def encodings(self, text: str) -> list[tuple[int, ...]]:
        return [tuple(self.encode(text))]

    def piece(self, token: int) -> str:
        return "x" if self.continues_word[token] else " x"


def as_list(boosts: Boosts) -> TokenPhrases:
    return tuple(TokenPhrase(phrase, boosts[phrase]) for phrase in sorted(boosts))


def arena_of(boosts: Boosts, continues_word: Sequence[bool], device: str = "cpu") -> tuple[PhraseArena, int]:
    """An arena with one list, and the state in which the list starts."""
    arena = PhraseArena(np.array(continues_word), 1 << 20, device)
    pages = arena.write(build_table(PhraseTrie(as_list(boosts), continues_word), continues_word))
    return arena, pages[0] * PAGE_STATES


def random_tokenizer(generator: random.Random, size: int) -> NumberTokenizer:
    share = generator.choice([0.0, 0.3, 0.6])
    return NumberTokenizer([generator.random() < share for _ in range(size)])


def random_boosts(generator: random.Random, size: int, max_phrases: int = 40) -> Boosts:
    """Phrases of 1 to 5 labels, many of them parts of others."""
    boosts: Boosts = {}
    for _ in range(generator.randint(1, max_phrases)):
        phrase = tuple(generator.randrange(size) for _ in range(generator.randint(1, 5)))
        if boosts and generator.random() < 0.4:
            phrase = (generator.choice(list(boosts)) + phrase)[-5:]
        boosts[phrase] = generator.uniform(-2, 3)
    return boosts


def random_labels(generator: random.Random, size: int, boosts: Boosts, length: int = 30) -> list[int]:
    """Phrases, beginnings of phrases and noise, one after the other."""
    phrases, labels = list(boosts), []
    while len(labels) < length:
        phrase = generator.choice(phrases) if phrases and generator.random() < 0.7 else (generator.randrange(size),)
        labels += phrase[: generator.randint(1, len(phrase))]
    return labels[:length]


def totals_along(boost: Automaton, starts: list[int], labels: list[list[int]]) -> torch.Tensor:
    """[B, U + 1] float64: the total score of each row's first 0 .. U labels if the stream ends there."""
    columns = torch.tensor(labels).unbind(1)
    states = torch.tensor(starts)
    running = torch.zeros(len(starts), dtype=torch.float64)
    totals = [running + boost.final_scores(states)]
    for column in columns:
        transitions = boost.advance(states, column)
        running, states = running + transitions.scores, transitions.next_states
        totals.append(running + boost.final_scores(states))
    return torch.stack(totals, dim=1)


def expected_totals(labels: list[int], boosts: Boosts, continues_word: Sequence[bool]) -> torch.Tensor:
    """The totals of one row by the reference, [U + 1] float64."""
    prefixes = [labels[:count] for count in range(len(labels) + 1)]
    return torch.tensor([boosted_total(prefix, boosts, continues_word) for prefix in prefixes], dtype=torch.float64)
