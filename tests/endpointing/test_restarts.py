"""Borders, the audio that is sent again, and times, against a recognizer that is played by hand."""

import numpy as np
import pytest

from penstock.endpointing.restarts import Piece, Restarts

RATE_HZ = 16_000


def audio(start: int, end: int) -> np.ndarray:
    """Samples whose values are their numbers."""
    return np.arange(start, end, dtype=np.float32)


@pytest.mark.parametrize(("last_word_ms", "border_s"), [(1840, 2.33), (2330, 2.33), (2480, 2.48)])
def test_the_border_lies_before_the_endpoint_but_not_before_the_word(last_word_ms, border_s):
    restarts = Restarts(RATE_HZ)
    for start in range(0, 48_000, 1600):
        restarts.note(Piece(audio(start, start + 1600)))
    (again,) = restarts.restart(2.73, last_word_ms)
    assert restarts.start_samples == round(border_s * RATE_HZ)
    np.testing.assert_array_equal(again.samples, audio(restarts.start_samples, 48_000))
    assert (again.ends_segment, restarts.segment) == (False, 1)
    # The recognizer received 3 s, and `finalize`: its next segment begins there.
    assert restarts.stream_ms(3000 + 640) == round(restarts.start_samples / 16) + 640
    assert restarts.stream_s(3.5) == pytest.approx(restarts.start_samples / RATE_HZ + 0.5)


@pytest.mark.parametrize("in_flight", [0, 1, 333, 25_000])
def test_borders_do_not_depend_on_what_was_on_its_way(in_flight):
    """Nor on the rounding of times: milliseconds, and float32 seconds after hours."""
    restarts = Restarts(RATE_HZ)
    restarts.note(Piece(np.zeros(160_000 * 16, np.float32)))  # 160 s that end in a segment end
    restarts.note(Piece(np.zeros(in_flight % 7, np.float32), ends_segment=True))
    restarts.note_end()
    begin = restarts.start_samples
    restarts.note(Piece(np.zeros(40_000 + in_flight, np.float32)))
    received = begin + 40_000 + in_flight
    restarts.restart(float(np.float32(begin / RATE_HZ + 2.17)), round(begin / 16 + 1200))
    assert restarts.start_samples == begin + round((2.17 - 0.4) * RATE_HZ)
    assert restarts.stream_ms(round(received / 16 + 400)) == round(restarts.start_samples / 16 + 400)


@pytest.mark.parametrize(("processed_s", "border"), [(2.4, 32_000), (0.8, 6400), (0.3, 2400), (0.01, 160)])
def test_a_segment_without_words_is_a_pause_whose_last_half_at_most_is_sent_again(processed_s, border):
    restarts = Restarts(RATE_HZ)
    restarts.note(Piece(audio(0, 40_000)))
    restarts.restart(processed_s, None)
    assert restarts.start_samples == border


def test_a_word_cannot_end_behind_what_was_processed():
    restarts = Restarts(RATE_HZ)
    restarts.note(Piece(audio(0, 40_000)))
    restarts.restart(2.0, 2070)
    assert restarts.start_samples == 32_000


def test_old_audio_is_forgotten_and_never_sent_again():
    restarts = Restarts(RATE_HZ)
    for start in range(0, 60 * RATE_HZ, 1600):
        restarts.note(Piece(audio(start, start + 1600)))
        restarts.note_processed(min(max(0, start - 1000) / RATE_HZ, 59.0))
    assert len(restarts._pieces) < 20
    (again,) = restarts.restart(59.0, last_word_ms=1000)
    assert restarts.start_samples == 58.6 * RATE_HZ, "of a pause of an hour, 0.4 s are sent again"
    np.testing.assert_array_equal(again.samples, audio(937_600, 60 * RATE_HZ))


def test_ends_of_the_caller_are_sent_again_in_their_places():
    restarts = Restarts(RATE_HZ)
    for start, ends_segment in ((0, False), (16_000, False), (32_000, True), (48_000, True), (48_000, False)):
        restarts.note(Piece(audio(start, min(start + 16_000, 48_000)), ends_segment))
    again = restarts.restart(1.6, last_word_ms=800)
    assert [(len(samples), ends) for samples, ends in again] == [(48_000 - 19_200, True), (0, True)]
    restarts.note_end()
    assert (restarts.start_samples, restarts.segment) == (48_000, 2)
    restarts.note_end()
    assert (restarts.start_samples, restarts.segment) == (48_000, 3)


def test_what_was_not_sent_yet_counts_as_not_received():
    restarts = Restarts(RATE_HZ)
    restarts.note(Piece(audio(0, 48_000)))
    (again,) = restarts.restart(1.6, 800, unsent_samples=16_000)
    assert len(again.samples) == 48_000 - 19_200
    assert restarts.stream_ms(2000) == 1200, "it received 2 s"
