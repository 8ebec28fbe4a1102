"""DER and cpWER equal pyannote.metrics and meeteval, which no extra has: numpy of 2 and later, and a C++ compiler."""

import random

import pytest

from penstock.evaluation.diarization import diarization_errors, word_errors

pytestmark = pytest.mark.oracle
CASES = 200


def random_turns(draw: random.Random, speakers: str) -> list[tuple[str, float, float]]:
    starts = [(speaker, draw.randrange(200) / 10) for speaker in speakers for _ in range(draw.randrange(6))]
    return [(speaker, start_s, start_s + draw.randrange(1, 60) / 10) for speaker, start_s in starts]


@pytest.mark.parametrize("collar_s", [0.0, 0.25])
def test_diarization_error_rate(collar_s):
    core = pytest.importorskip("pyannote.core")
    metrics = pytest.importorskip("pyannote.metrics.diarization")
    draw = random.Random(0)

    def annotation(turns: list[tuple[str, float, float]]) -> "core.Annotation":
        found = core.Annotation()
        for number, (speaker, start_s, end_s) in enumerate(turns):
            found[core.Segment(start_s, end_s), number] = speaker
        return found.support()

    for _ in range(CASES):
        reference, hypothesis = random_turns(draw, "ABC"), random_turns(draw, "1234"[: draw.randrange(5)])
        uem = core.Timeline([core.Segment(0, 30)])
        metric = metrics.DiarizationErrorRate(collar=2 * collar_s)
        expected = metric(annotation(reference), annotation(hypothesis), uem=uem, detailed=True)
        found = diarization_errors(reference, hypothesis, collar_s)
        parts = (found.missed_s, found.false_alarm_s, found.confused_s, found.speech_s)
        names = ("missed detection", "false alarm", "confusion", "total")
        assert parts == pytest.approx([expected[name] for name in names], abs=1e-6)


def test_word_errors_of_speakers():
    wer = pytest.importorskip("meeteval.wer")
    draw = random.Random(0)

    def texts(speakers: str) -> dict[str, str]:
        return {speaker: " ".join(draw.choices("abcde", k=draw.randrange(9))) for speaker in speakers}

    for _ in range(CASES):
        reference, hypothesis = texts("ABC"[: draw.randrange(1, 4)]), texts("1234"[: draw.randrange(1, 5)])
        expected = wer.cp_word_error_rate(reference, hypothesis)
        found = word_errors(reference, hypothesis)
        assert (found.edits, found.reference_units) == (expected.errors, expected.length)
