"""The language, sounds and data of the toy world (`scripts.toy_world`)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from recipes.training.encoded import EncodedUtterance

WORDS = 40
CONCENTRATION = 0.05
"""Of the Dirichlet distribution of the word after two others: a perplexity of about 4."""
SENTENCE_WORDS = (4, 12)
FEATURES = 12
PAIR_DISTANCE, NOISE = 0.3, 0.5
"""Half the distance of two words that sound alike, and the deviation of a frame; other words' is about 5."""
WORD_FRAMES = (2, 4)
ONSET = 5.0
"""One more feature, without noise, of the first frame of a word and of the frame after the last."""
WINDOW = 4
"""Frames of speech in one encoder frame, the last of them in the future."""
D_ENCODED = WINDOW * (FEATURES + 1)
"""Width of an encoder frame."""


class Language:
    """A Markov source of order 2; a word depends on the two before it."""

    def __init__(self, random: np.random.Generator):
        table = random.dirichlet(np.full(WORDS, CONCENTRATION), size=(WORDS + 1, WORDS + 1))
        self._cumulated = table.cumsum(axis=2)  # row and column `WORDS`: before the first word

    def sentences(self, count: int, random: np.random.Generator) -> list[list[int]]:
        """Sentences of 4 to 12 words."""
        lengths = random.integers(SENTENCE_WORDS[0], SENTENCE_WORDS[1] + 1, size=count)
        before, last, words = np.full(count, WORDS), np.full(count, WORDS), []
        for _ in range(SENTENCE_WORDS[1]):
            rows = self._cumulated[before, last]
            chosen = (rows < random.random((count, 1)) * rows[:, -1:]).sum(axis=1)
            words.append(chosen)
            before, last = last, chosen
        return [row[:length].tolist() for row, length in zip(np.stack(words, axis=1), lengths, strict=True)]


class Sounds:
    """How words sound: a vector each, alike in pairs, over 2 to 4 frames of noise."""

    def __init__(self, random: np.random.Generator):
        centers = random.normal(size=(WORDS // 2, 1, FEATURES))
        apart = random.normal(size=(WORDS // 2, 1, FEATURES))
        apart *= PAIR_DISTANCE / np.linalg.norm(apart, axis=2, keepdims=True)
        self._vectors = np.concatenate([centers + apart, centers - apart], axis=1).reshape(WORDS, FEATURES)

    def speak(self, sentence: Sequence[int], random: np.random.Generator) -> EncodedUtterance:
        """The sentence as encoder frames."""
        counts = random.integers(WORD_FRAMES[0], WORD_FRAMES[1] + 1, size=len(sentence))
        speech = np.repeat(self._vectors[list(sentence)], counts, axis=0)
        speech = speech + NOISE * random.normal(size=speech.shape)
        onsets = np.zeros((len(speech) + 1, 1))
        onsets[np.append(0, counts.cumsum())] = ONSET
        speech = np.concatenate([np.pad(speech, ((0, 1), (0, 0))), onsets], axis=1)
        padded = np.pad(speech, ((WINDOW - 2, 0), (0, 0)))
        frames = np.concatenate([padded[i : i + len(speech) - 1] for i in range(WINDOW)], axis=1)
        return EncodedUtterance(torch.from_numpy(frames).float(), list(sentence), text_of(sentence))


def text_of(labels: Sequence[int]) -> str:
    """The labels as words."""
    return " ".join(f"w{label}" for label in labels)


class World(NamedTuple):
    """All data of one domain."""

    written: list[list[int]]
    """Sentences that are known as text alone."""
    spoken: list[EncodedUtterance]
    tuning: list[EncodedUtterance]
    test: list[EncodedUtterance]


def make_world(
    sounds: Sounds, random: np.random.Generator, *, written: int, spoken: int, tuning: int, test: int
) -> World:
    """A new language, and these numbers of sentences and utterances of it."""
    language = Language(random)

    def utterances(count: int) -> list[EncodedUtterance]:
        return [sounds.speak(sentence, random) for sentence in language.sentences(count, random)]

    sentences = language.sentences(written, random)
    return World(sentences, utterances(spoken), utterances(tuning), utterances(test))
