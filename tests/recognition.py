"""Drives the recogniser in tests: streams that start, pause and end at random, in pieces of any size."""

import random
from dataclasses import dataclass, field

import numpy as np

from penstock.recognizer import StreamingRecognizer
from penstock.stages.features import AudioRequest
from penstock.stages.stream_text import StreamResult
from penstock.transcript import Token, Word
from tests.streaming import cut

NO_SAMPLES = np.zeros(0, np.float32)


@dataclass
class Heard:
    """All results of one stream."""

    results: list[StreamResult] = field(default_factory=list)

    @property
    def tokens(self) -> list[Token]:
        return [token for result in self.results for token in result.tokens]

    @property
    def words(self) -> list[Word]:
        return [word for result in self.results for word in result.words]

    @property
    def text(self) -> str:
        return self.results[-1].text

    @property
    def outcome(self) -> tuple:
        """What must not depend on pieces or company: all but the last bits of scores and confidences."""
        return [token[:3] for token in self.tokens], [word[:3] for word in self.words], self.text


def recognize_alone(recognizer: StreamingRecognizer, samples: np.ndarray, pieces=(slice(None),)) -> Heard:
    """One stream in given pieces."""
    stream = recognizer.open_stream()
    return Heard([*(stream.push(samples[piece]) for piece in pieces), stream.finish()])


def recognize_together(
    recognizer: StreamingRecognizer, signals: list[np.ndarray], chance: random.Random, most: int = 8000
) -> list[Heard]:
    """Many streams in random pieces of 0 .. most samples; each batch takes some of them, in any order."""
    pieces = [[*cut(len(samples), chance, most), slice(0, 0)] for samples in signals]
    heard = [Heard() for _ in signals]
    while waiting := [i for i, left in enumerate(pieces) if left]:
        rows = chance.sample(waiting, chance.randint(1, len(waiting)))
        requests = []
        for i in rows:
            piece = pieces[i].pop(0)
            requests.append(AudioRequest(f"s{i}", signals[i][piece], not heard[i].results, is_end=not pieces[i]))
        for i, result in zip(rows, recognizer.process(requests), strict=True):
            assert isinstance(result, StreamResult), result
            heard[i].results.append(result)
    return heard
