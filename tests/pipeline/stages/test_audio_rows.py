"""Requests to `asr_batch`: bad rows are rejected alone, arrays that do not fit together as a whole; endpoints."""

import numpy as np
import pytest

from penstock.errors import ErrorCode, StreamError
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import StreamTable, slot_count
from penstock.pipeline.stages.audio_rows import StreamNumber, read_parameters, read_rows, read_samples
from penstock.pipeline.stages.features import FeatureStage
from tests.helpers.random_models import random_ctc_checkpoint

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
    found = read_rows("me", rows, samples, [{}, {"n_best": 2}], 10)
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
    ],
)
def test_a_row_of_no_stream_is_rejected_alone(row, code, message):
    found = read_rows("me", rows_of((1, 4, 1, 0), row, (3, 2, 0, -1)), np.zeros(6, np.float32), [{}], 6)
    assert (list(found.options), list(found.errors), found.problems) == ([0], [1], {})
    error = found.errors[1]
    assert (error.code.name, error.message.startswith(f"stream {row[0]}: {message}")) == (code, True), error.message


@pytest.mark.parametrize(
    ("row", "code", "message"),
    [
        ((2, 0, 1, 2), "REQUEST_INVALID", "the options are number 2 of 2; accepted: -1 to 1"),
        ((2, 0, 1, -2), "REQUEST_INVALID", "the options are number -2 of 2; accepted: -1 to 1"),
        ((2, 0, 1, LARGEST), "REQUEST_INVALID", f"the options are number {LARGEST} of 2"),
        ((2, 0, 1, 1), "OPTION_INVALID", "the options are [1]; accepted: a JSON object"),
    ],
)
def test_a_row_whose_options_cannot_be_used_is_rejected_alone(row, code, message):
    found = read_rows("me", rows_of((1, 4, 1, 0), row, (3, 2, 0, -1)), np.zeros(6, np.float32), [{}, [1]], 6)
    assert (list(found.options), list(found.problems), found.errors) == ([0], [1], {})
    error = found.problems[1]
    assert (error.code.name, error.message.startswith(message)) == (code, True), error.message


def test_the_rows_of_a_stream_share_a_limit():
    rows = rows_of((1, 4, 0, -1), (2, 5, 0, -1), (1, 2, 0, -1), (1, 0, 2, -1), (3, 6, 0, -1))
    found = read_rows("me", rows, np.zeros(17, np.float32), [], 5)
    assert (list(found.problems), found.errors) == ([2, 4], {})
    assert {error.code for error in found.problems.values()} == {ErrorCode.AUDIO_INVALID}
    assert found.problems[2].message == "6 samples in one request, at most 5"


@pytest.mark.parametrize("end", [(7, 0, 2, 1), (7, 6, 2, -1)], ids=["options after the start", "too long"])
def test_a_rejected_end_ends_its_stream(end, tmp_path):
    checkpoint = random_ctc_checkpoint(tmp_path, 3)
    table = StreamTable(1, SlotLedger(slot_count(1)))
    stage = FeatureStage(checkpoint, checkpoint.config.encoder.select_context(None), table)
    for row, live in (((7, 0, 1, -1), 1), (end, 0)):
        request = read_rows("me", rows_of(row), np.zeros(row[1], np.float32), [{}, {"boost": 1}], 5)
        (reply,) = stage.process_rows([request])
        assert table.live_streams == live
    assert reply.errors[0].message.startswith("stream 7 of client 'me': ")


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
    error = rejection(read_rows, "me", rows, np.zeros(10, np.float32), [], 10)
    assert error.code is ErrorCode.REQUEST_INVALID
    assert message in error.message


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "client is missing; accepted: a text of 1 to 64 characters that no other connection uses"),
        ({"client": ""}, "client is ''; accepted"),
        ({"client": 5}, "client is 5; accepted"),
        ({"client": "x" * 65}, "client is 'xxx"),
        ({"client": "x", "finalize": True}, "'finalize' is not accepted by asr_batch; known: client, options"),
        ({"client": "x", "options": 5}, "options are 5; accepted: a JSON array of objects"),
        ({"client": "x", "options": "{}"}, "options are '{}'; accepted: a JSON array of objects"),
        ({"client": "x", "options": "["}, "options are not JSON: Expecting"),
        ({"client": "x", "options": "[" * 100_000}, "options are not JSON: maximum recursion depth"),
    ],
)
def test_a_request_names_its_client_and_may_have_options(parameters, message):
    error = rejection(read_parameters, parameters)
    assert error.code is ErrorCode.OPTION_INVALID
    assert error.message.startswith(message)
    assert read_parameters({"client": "x" * 64}) == ("x" * 64, [])
    assert read_parameters({"client": "x", "options": '[{"n_best": 2}, 5]'}) == ("x", [{"n_best": 2}, 5])


def test_samples_come_in_one_of_two_types():
    samples = np.array([[-32768, 0, 1, 32767]], np.int16)
    audio = np.array([[0.5, -1.0]], np.float32)
    no_audio, no_samples = audio[:, :0], samples[:, :0]
    assert read_samples(no_audio, samples).tolist() == (samples[0] / 32768).tolist()
    assert read_samples(audio, no_samples).tolist() == audio[0].tolist()
    assert read_samples(no_audio, no_samples).dtype == np.float32
    for arrays, message in (
        ((audio, samples), "both AUDIO and PCM have samples; accepted: one of them, the other one empty"),
        ((np.zeros((2, 3), np.float32), no_samples), "samples are [2, 3]; accepted: [1, n]"),
        ((np.zeros(3, np.float32), no_samples), "samples are [3]; accepted: [1, n]"),
        ((no_audio, samples[0]), "samples are [4]; accepted: [1, n]"),
    ):
        assert message in rejection(read_samples, *arrays).message
