"""Drives the recognizer in tests: streams that start, pause and end at random, in requests of any size."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.pipeline.results.results import StreamResult
from penstock.pipeline.results.words import Token, Word
from penstock.pipeline.stages.audio_rows import AudioRequest
from penstock.recognizer import StreamingRecognizer
from tests.helpers.streaming import cut

IN_PYTORCH = {"OV_CPU_MAX_ISA": "none"}
"""Variables of a process that compiles no encoders: OpenVINO is used if all its parts have the same limit."""
NO_SAMPLES = np.zeros(0, np.float32)


@dataclass
class Transcription:
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
        """Results that depend on no request sizes and no other stream: no last bits of scores and confidences."""
        return [token[:3] for token in self.tokens], [word[:3] for word in self.words], self.text


def recognize_alone(
    recognizer: StreamingRecognizer, samples: np.ndarray, parts=(slice(None),), options: dict | None = None
) -> Transcription:
    """One stream in given parts."""
    stream = recognizer.open_stream(options=options)
    return Transcription([*(stream.push(samples[part]) for part in parts), stream.finish()])


def recognize_together(
    recognizer: StreamingRecognizer,
    signals: list[np.ndarray],
    chance: random.Random,
    most: int = 8000,
    options: Sequence[dict] | None = None,
) -> list[Transcription]:
    """Many streams in random requests of 0 .. most samples; each batch takes some of them, in any order.

    options: of each stream.
    """
    parts = [[*cut(len(samples), chance, most), slice(0, 0)] for samples in signals]
    recognized = [Transcription() for _ in signals]
    while waiting := [i for i, left in enumerate(parts) if left]:
        rows = chance.sample(waiting, chance.randint(1, len(waiting)))
        requests = []
        for i in rows:
            part = parts[i].pop(0)
            is_start = not recognized[i].results
            chosen = options[i] if options and is_start else {}
            requests.append(AudioRequest(f"s{i}", signals[i][part], is_start, not parts[i], chosen))
        for i, result in zip(rows, recognizer.process(requests), strict=True):
            assert isinstance(result, StreamResult), result
            recognized[i].results.append(result)
    return recognized
