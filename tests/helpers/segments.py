"""Streams with endpoints in tests: their segments, in one piece, in random requests and beside others."""

import random

import numpy as np

from penstock import StreamingRecognizer, StreamResult
from penstock.frontend.audio_file import read_audio
from tests.helpers import recognition
from tests.helpers.golden import AN4

SAMPLE_RATE_HZ = 16_000


def speech_with_pauses() -> np.ndarray:
    """Three recordings with pauses of 1 s, 9.9 s in all."""
    names, pause = ("an395-mjwl-b", "an397-miry-b", "cen7-fvap-b"), np.zeros(SAMPLE_RATE_HZ, np.float32)
    recordings = [read_audio(AN4 / "flac" / f"{name}.flac", SAMPLE_RATE_HZ) for name in names]
    return np.concatenate([part for one in recordings for part in (one, pause)])


def recognize(
    recognizer: StreamingRecognizer, samples: np.ndarray, parts: list[slice], options: dict
) -> list[StreamResult]:
    """All entries of one stream."""
    with recognizer.open_stream(options=options) as stream:
        results = [stream.push(samples[part]) for part in parts[:-1]]
        results.append(stream.finish(samples[parts[-1]]))
    return [entry for result in results for entry in result.entries]


def segments(entries: list[StreamResult]) -> list[tuple]:
    """Summarizes each segment: everything but last bits of scores."""
    finals = [entry for entry in entries if entry.is_final]
    assert [final.segment for final in finals] == list(range(len(finals)))
    return [
        (
            final.text,
            final.audio_processed_s,
            [word[:3] for entry in entries if entry.segment == final.segment for word in entry.words],
            [token[:3] for entry in entries if entry.segment == final.segment for token in entry.tokens],
            [alternative.text for alternative in final.alternatives],
        )
        for final in finals
    ]


def pieces(samples: np.ndarray, milliseconds: int) -> list[slice]:
    size = milliseconds * SAMPLE_RATE_HZ // 1000
    return [slice(start, start + size) for start in range(0, len(samples), size)]


def recognize_together(
    recognizer: StreamingRecognizer, rows: list[tuple[np.ndarray, dict]], chance: random.Random
) -> list[list[StreamResult]]:
    """All entries of each of several streams (samples and options), in random requests and batches."""
    signals, options = zip(*rows, strict=True)
    transcriptions = recognition.recognize_together(recognizer, list(signals), chance, 30_000, options)
    return [[entry for result in one.results for entry in result.entries] for one in transcriptions]
