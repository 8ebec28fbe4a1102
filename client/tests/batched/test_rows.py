import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from client.tests.helpers.fake_batch import FakeBatch, read_request
from client.tests.helpers.fake_servers import grpc_response
from client.tests.helpers.fakes import FakeRecognizer, outputs, parse_reply
from penstock_client import ProtocolError, ServerFullError, StreamError
from penstock_client.batched.grpc_call import infer_message, output_values
from penstock_client.batched.rows import END, FINALIZE, START, Reply, Row, decode_reply, rows_message
from penstock_client.protocol import MODEL_NAME

FLOATS = np.array([0.5, -0.25, 1.0], np.float32)
PCM = np.array([16384, -32768], np.int16)
NONE = np.empty(0, np.int16)


def encode_request(client: str, rows: list[Row]) -> service_pb2.ModelInferRequest:
    return infer_message(MODEL_NAME, rows_message(client, rows))


def decoded(outputs_of_reply: dict[str, np.ndarray], rows: int) -> Reply:
    return decode_reply(output_values(grpc_response(outputs_of_reply)), "", rows)


def answer(*rows: Row) -> dict[str, np.ndarray]:
    return FakeBatch(FakeRecognizer()).answer(*read_request(encode_request("me", rows)))


def test_rows_are_joined_without_padding():
    request = encode_request("me", [Row(7, FLOATS, START, '{"n_best": 2}'), Row(9, NONE, END), Row(7, FLOATS[:1], 4)])
    client, tensors = read_request(request)
    assert (request.model_name, client) == (MODEL_NAME, "me")
    assert tensors["AUDIO"].tolist() == [[0.5, -0.25, 1.0, 0.5]]
    assert tensors["ROWS"].tolist() == [[[7, 3, 1, 0], [9, 0, 2, -1], [7, 1, 4, -1]]]
    assert tensors["OPTIONS"] == [{"n_best": 2}]


def test_every_request_has_the_same_inputs():
    """The server batches only requests whose inputs are the same."""
    for row in (Row(1, FLOATS), Row(1, PCM, START, "{}"), Row(1, NONE, START, "{}")):
        request = encode_request("me", [row])
        assert [one.name for one in request.inputs] == ["AUDIO", "PCM", "ROWS"]
        assert len(read_request(request)[1]["OPTIONS"]) == (row.options is not None)


def test_int16_is_sent_as_such_where_all_rows_have_it():
    tensors = read_request(encode_request("me", [Row(1, PCM), Row(2, NONE)]))[1]
    assert tensors["PCM"].tolist() == [[16384, -32768]] and not tensors["AUDIO"].size
    tensors = read_request(encode_request("me", [Row(1, PCM), Row(2, FLOATS)]))[1]
    assert tensors["AUDIO"].tolist() == [[0.5, -1.0, 0.5, -0.25, 1.0]] and not tensors["PCM"].size


def test_results_go_to_their_rows():
    audio = np.zeros(2000, np.float32)
    rows = [Row(1, audio, START), Row(2, audio[:0], START), Row(1, audio, FINALIZE), Row(1, audio[:900], END)]
    results, errors = decoded(answer(*rows), len(rows))
    assert not errors
    assert results == {
        0: [parse_reply("s", outputs(0, 2000, False).get)[0]],
        2: [parse_reply("s", outputs(2000, 4000, True).get)[0]],
        3: [results[3][0]],
    }
    assert (results[3][0].segment, results[3][0].is_final) == (4, True)


def test_a_bad_row_has_an_error_and_its_neighbours_have_results():
    rows = [Row(1, FLOATS, START), Row(5, FLOATS), Row(2, FLOATS, START)]
    results, errors = decoded(answer(*rows), 3)
    assert list(results) == [0, 2]
    assert list(errors) == [1] and errors[1].startswith("STREAM_NOT_OPEN: ")


def test_a_rejected_request_is_raised():
    with pytest.raises(ServerFullError, match=r"STREAM_LIMIT: .*no slot"):
        decode_reply(lambda name: None, "STREAM_LIMIT: no slot", 1)
    with pytest.raises(StreamError, match="REQUEST_INVALID"):
        decode_reply(lambda name: None, "REQUEST_INVALID: 3 samples", 1)


@pytest.mark.parametrize(
    "change",
    [
        {"ROW": np.array([[1]], np.int32)},
        {"ROW": np.array([[-1]], np.int32)},
        {"ROW": np.array([[0, 0]], np.int32)},
        {"ERROR_ROWS": np.array([[0]], np.int32)},
        {"LIST_COUNTS": np.array([[1, 2]], np.int32)},
    ],
    ids=str,
)
def test_a_reply_that_does_not_fit_is_a_protocol_error(change):
    with pytest.raises(ProtocolError, match="cannot be read"):
        decoded(answer(Row(1, FLOATS, START)) | change, 1)
