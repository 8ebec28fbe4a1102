"""Audio that a stream keeps for a move, over hours."""

import numpy as np
import pytest

from penstock_client.alignment import ChunkGeometry
from penstock_client.batched.replay import Replay
from penstock_client.batched.rows import FINALIZE, START, Part, StreamResult
from penstock_client.limits import SPEAKER_CONTEXT_S, WARM_UP_S
from penstock_common.results import Word
from penstock_common.samples import SAMPLE_RATE_HZ

CHUNK = 8960
"""The geometry of a model at [70,6]; its results cover 70 ms less."""
NOT_COVERED = 1120
SILENT_CHUNKS = 18
"""Until a segment without words ends."""


@pytest.mark.parametrize("hours", [0.01, 4])
def test_hours_of_silence_keep_and_repeat_as_much_as_seconds_do(hours):
    replay, audio = Replay(lambda: 0.0), np.zeros(CHUNK, np.int16)
    chunks, segment, most = round(hours * 3600 * SAMPLE_RATE_HZ / CHUNK), 0, 0
    for number in range(chunks):
        replay.add(Part(audio, 0 if number else START, (number + 1) * CHUNK, number, {"beam_size": 4}))
        most = max(most, replay.kept.bytes // 2)
        if number % SILENT_CHUNKS == SILENT_CHUNKS - 1:
            assert replay.new_result(result(segment, covered_s(number + 1), is_final=True)).segment == segment
            segment += 1
    border = segment * SILENT_CHUNKS * CHUNK
    assert replay.kept.bytes // 2 <= most <= (WARM_UP_S + 3 + 11) * SAMPLE_RATE_HZ
    parts = replay.restart(ChunkGeometry(CHUNK - NOT_COVERED, CHUNK))
    assert parts[0].parameters["beam_size"] == 4 and not any(part.is_start for part in parts[1:])
    warm_up = parts[0].parameters["warm_up_chunks"] * CHUNK
    assert replay.server.offset_samples == border - warm_up and warm_up >= WARM_UP_S * SAMPLE_RATE_HZ
    assert sum(part.samples for part in parts) == chunks * CHUNK - replay.server.offset_samples
    end_s = (chunks * CHUNK - replay.server.offset_samples) / SAMPLE_RATE_HZ
    taken = replay.new_result(result(1, end_s, words=(Word("ON", 10_000, 10_200, 1.0),)))
    assert taken.segment == segment
    (word,) = taken.new_words
    assert word.start_ms == 10_000 + 1000 * replay.server.offset_samples // SAMPLE_RATE_HZ


def test_with_speakers_up_to_a_minute_before_the_segment_is_repeated():
    replay, audio, most = Replay(lambda: 0.0, has_speakers=True), np.zeros(CHUNK, np.int16), 0
    for number in range(4000):
        replay.add(Part(audio, 0 if number else START, (number + 1) * CHUNK, number, {}))
        most = max(most, replay.kept.bytes // 2)
        if number % SILENT_CHUNKS == SILENT_CHUNKS - 1:
            replay.new_result(result(number // SILENT_CHUNKS, covered_s(number + 1), is_final=True))
    assert most <= (SPEAKER_CONTEXT_S + WARM_UP_S + 3 + 11) * SAMPLE_RATE_HZ
    (first, *_) = replay.restart(ChunkGeometry(CHUNK - NOT_COVERED, CHUNK))
    begin = replay.server.offset_samples + first.parameters["warm_up_chunks"] * CHUNK
    context_s = (replay.segment_start_samples - begin) / SAMPLE_RATE_HZ
    segment_s = SILENT_CHUNKS * CHUNK / SAMPLE_RATE_HZ
    assert SPEAKER_CONTEXT_S - segment_s <= context_s <= SPEAKER_CONTEXT_S
    repeated = [replay.new_result(result(1 + i, (i + 1) * segment_s, is_final=True)) for i in range(5)]
    assert repeated == [None] * 5
    assert replay.new_result(result(6, 6 * segment_s)).segment == 4000 // SILENT_CHUNKS


def test_ends_by_the_caller_keep_the_encoders_context_and_are_told_once():
    replay, audio = Replay(lambda: 0.0), np.zeros(CHUNK, np.int16)
    for number in range(400):
        replay.add(Part(audio, FINALIZE if number else START, (number + 1) * CHUNK, number, {}))
        if 0 < number < 399:
            replay.new_result(forced(number - 1, number + 1))
    assert replay.kept.bytes // 2 <= (WARM_UP_S + 4) * SAMPLE_RATE_HZ
    parts = replay.restart(ChunkGeometry(CHUNK - NOT_COVERED, CHUNK, 7))
    chunks = len(parts)
    assert "warm_up_chunks" not in parts[0].parameters and replay.server.offset_samples == (400 - chunks) * CHUNK
    assert WARM_UP_S * SAMPLE_RATE_HZ <= (chunks - 1) * CHUNK < (WARM_UP_S + 1) * SAMPLE_RATE_HZ
    taken = [replay.new_result(forced(number, number + 1)) for number in range(chunks)]
    assert taken[:-1] == [None] * (chunks - 1)
    assert (taken[-1].segment, taken[-1].new_timestamps) == (398, (7 * (400 - chunks) + 3,))


def test_a_new_stream_has_the_options_of_its_place():
    """Options that changed before it come with its start, later ones where they changed."""
    replay, audio = Replay(lambda: 0.0), np.zeros(CHUNK, np.int16)
    changes = {40: {"boost": 1.0}, 100: {"boost": 2.0}, 395: {"boost": 3.0, "language": "de"}, 399: {"boost": 4.0}}
    for number in range(401):
        flags, parameters = (FINALIZE, changes[number]) if number in changes else (0, {})
        start = {} if number else {"beam_size": 4, "boost": 0.0}
        replay.add(Part(audio, flags if number else START, (number + 1) * CHUNK, number, parameters or start))
        if number in (40, 100):
            replay.new_result(forced(list(changes).index(number), number + 1))
    first, *rest = replay.requests(ChunkGeometry(CHUNK - NOT_COVERED, CHUNK, 7))
    assert first.parameters == {"beam_size": 4, "boost": 1.0} and first.is_start
    assert [part.parameters for part in rest if part.parameters] == [changes[number] for number in (100, 395, 399)]
    replay.new_result(forced(2, 396))
    replay.new_result(forced(3, 400))
    replay.new_result(result(4, covered_s(401), is_final=True))
    first, *rest = replay.requests(ChunkGeometry(CHUNK - NOT_COVERED, CHUNK, 7))
    assert first.parameters.items() >= {"boost": 4.0, "language": "de"}.items()
    assert not any(part.parameters for part in rest)


def forced(segment: int, chunks: int) -> StreamResult:
    """At the end of the last of them, with a token at frame 3."""
    return StreamResult(segment, "", True, chunks * CHUNK / SAMPLE_RATE_HZ, (), (5,), (3,))


def covered_s(chunks: int) -> float:
    """The result from the server."""
    return float(np.float32((chunks * CHUNK - NOT_COVERED) / SAMPLE_RATE_HZ))


def result(segment: int, processed_s: float, is_final: bool = False, words: tuple[Word, ...] = ()) -> StreamResult:
    return StreamResult(segment, "", is_final, processed_s, words, (), (), is_endpoint=is_final)
