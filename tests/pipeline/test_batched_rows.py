"""Requests to `asr_batch`: bad rows are rejected alone, arrays that do not fit together as a whole."""

import numpy as np
import pytest

from penstock.errors import ErrorCode, StreamError
from penstock.pipeline.audio_rows import StreamNumber
from penstock.pipeline.batched_rows import read_client, read_rows, read_samples

LARGEST = 2**63 - 1


def rows_of(*rows: tuple[int, int, int, int]) -> np.ndarray:
    return np.array([rows], np.int64).reshape(1, len(rows), 4)


def rejection(call, *arguments) -> StreamError:
    with pytest.raises(StreamError) as error:
        call(*arguments)
    return error.value


def test_rows_are_read_in_order():
    samples = np.arange(10, dtype=np.float32)
    rows = rows_of((5, 3, 1, 1), (7, 0, 0, -1), (5, 7, 6, -1))
    found = read_rows("me", rows, samples, [b"{}", b'{"n_best": 2}'])
    assert (found.errors, found.problems, found.is_batched) == ({}, {}, True)
    assert found.samples is samples
    assert found.lengths.tolist() == [3, 0, 7]
    assert found.flags.tolist() == [1, 0, 6]
    assert found.stream_ids == [StreamNumber("me", 5), StreamNumber("me", 7), StreamNumber("me", 5)]
    assert found.options == {0: {"n_best": 2}}


@pytest.mark.parametrize(
    ("row", "code", "message"),
    [
        ((0, 0, 1, -1), "REQUEST_INVALID", "the stream number is 0; accepted: 1 or more"),
        ((-LARGEST - 1, 0, 1, -1), "REQUEST_INVALID", f"the stream number is {-LARGEST - 1}; accepted: 1 or more"),
        ((2, 0, 8, -1), "REQUEST_INVALID", "flags are 8; accepted: sums of 1 (start), 2 (end) and 4 (finalize)"),
        ((2, 0, -1, -1), "REQUEST_INVALID", "flags are -1; accepted: sums"),
        ((2, 0, 1, 5), "REQUEST_INVALID", "the options are number 5 of 5; accepted: -1 to 4"),
        ((2, 0, 1, -2), "REQUEST_INVALID", "the options are number -2 of 5; accepted: -1 to 4"),
        ((2, 0, 1, LARGEST), "REQUEST_INVALID", f"the options are number {LARGEST} of 5"),
        ((2, 0, 0, 0), "OPTION_INVALID", "options are given after the start; accepted: -1"),
        ((2, 0, 1, 1), "OPTION_INVALID", "the options are not JSON: Expecting"),
        ((2, 0, 1, 2), "OPTION_INVALID", "the options are [1]; accepted: a JSON object"),
        ((2, 0, 1, 3), "OPTION_INVALID", "the options are not JSON: maximum recursion depth"),
        ((2, 0, 1, 4), "OPTION_INVALID", "the options are not JSON: 'utf-8' codec"),
    ],
)
def test_a_bad_row_is_rejected_alone(row, code, message):
    options = [b"{}", b"{", b"[1]", b"[" * 100_000, b"\xff\xfe{}"]
    found = read_rows("me", rows_of((1, 4, 1, 0), row, (3, 2, 0, -1)), np.zeros(6, np.float32), options)
    assert list(found.options) == [0]
    (error,) = found.errors.values()
    assert list(found.errors) == [1]
    assert (error.code.name, error.message.startswith(f"stream {row[0]}: {message}")) == (code, True), error.message


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (rows_of(), "ROWS has 0 rows; accepted: 1 to 1024"),
        (rows_of(*[(1, 0, 0, -1)] * 1025), "ROWS has 1025 rows; accepted: 1 to 1024"),
        (rows_of((1, 5, 1, -1))[0], r"ROWS is [1, 4]; accepted: [1, R, 4]"),
        (np.zeros((2, 3, 4), np.int64), "ROWS is [2, 3, 4]"),
        (np.zeros((1, 3, 5), np.int64), "ROWS is [1, 3, 5]"),
        (rows_of((1, 5, 1, -1), (2, 4, 1, -1)), "the samples of ROWS do not add up to the 10 samples given"),
        (rows_of((1, 11, 1, -1), (2, -1, 1, -1)), "do not add up"),
        (rows_of((1, LARGEST, 1, -1), (2, LARGEST, 1, -1), (3, 12, 1, -1)), "do not add up"),
    ],
)
def test_arrays_that_do_not_fit_together_are_rejected_as_a_whole(rows, message):
    error = rejection(read_rows, "me", rows, np.zeros(10, np.float32), [])
    assert error.code is ErrorCode.REQUEST_INVALID
    assert message in error.message


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "client is missing; accepted: a text of 1 to 64 characters that no other connection uses"),
        ({"client": ""}, "client is ''; accepted"),
        ({"client": 5}, "client is 5; accepted"),
        ({"client": "x" * 65}, "client is 'xxx"),
        ({"client": "x", "finalize": True}, "'finalize' is not accepted by asr_batch; known: client"),
    ],
)
def test_a_request_names_its_client(parameters, message):
    error = rejection(read_client, parameters)
    assert error.code is ErrorCode.OPTION_INVALID
    assert error.message.startswith(message)
    assert read_client({"client": "x" * 64}) == "x" * 64


def test_samples_come_in_one_of_two_types():
    samples = np.array([[-32768, 0, 1, 32767]], np.int16)
    assert read_samples(None, samples).tolist() == (samples[0] / 32768).tolist()
    audio = np.array([[0.5, -1.0]], np.float32)
    assert read_samples(audio, None) is not None
    for arrays, message in (
        ((None, None), "neither AUDIO and PCM given"),
        ((audio, samples), "both AUDIO and PCM given; accepted: one of them"),
        ((np.zeros((2, 3), np.float32), None), "samples are [2, 3]; accepted: [1, n]"),
        ((np.zeros(3, np.float32), None), "samples are [3]; accepted: [1, n]"),
    ):
        assert message in rejection(read_samples, *arrays).message
