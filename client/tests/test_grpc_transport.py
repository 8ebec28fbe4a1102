from collections.abc import Collection

import numpy as np
import pytest
from tritonclient.grpc import InferResult, service_pb2

from client.tests.helpers.fake_servers import grpc_response
from client.tests.helpers.fakes import outputs
from penstock_client import ProtocolError, StreamError
from penstock_client.protocol import OUTPUTS_WITHIN_SEGMENT, Request, RequestSplitter
from penstock_client.replies import parse_reply
from penstock_client.transport.grpc_transport import model_request, output_names, read_reply


def reply(values: dict[str, np.ndarray]):
    return service_pb2.ModelStreamInferResponse(infer_response=grpc_response(values))


@pytest.mark.parametrize("is_final", [False, True])
@pytest.mark.parametrize("samples", [0, 800, 40_000])
def test_replies_are_read_as_by_tritonclient(samples, is_final):
    message = reply(outputs(0, samples, is_final, n_best=3))
    theirs = parse_reply("s", InferResult(message.infer_response).as_numpy)
    assert read_reply("s", message) == theirs
    assert theirs[0].alternatives or not is_final


def test_the_order_of_the_outputs_does_not_matter():
    values = outputs(0, 4000, True, n_best=2)
    backwards = dict(reversed(values.items()))
    assert read_reply("s", reply(backwards)) == read_reply("s", reply(values))


@pytest.mark.parametrize("name, cut", [("WORDS", 1), ("TEXT", 2), ("TOKENS", 1), ("WORD_CONFIDENCE", 3)])
def test_a_truncated_output_is_a_protocol_error(name, cut):
    message = reply(outputs(0, 4000, True))
    index = [output.name for output in message.infer_response.outputs].index(name)
    content = message.infer_response.raw_output_contents[index]
    message.infer_response.raw_output_contents[index] = content[:-cut]
    with pytest.raises(ProtocolError, match=r"stream 's': .*cannot be read"):
        read_reply("s", message)


def test_an_output_of_another_type_is_a_protocol_error():
    message = reply(outputs(0, 4000, True))
    for output in message.infer_response.outputs:
        output.datatype = "FP8"
    with pytest.raises(ProtocolError, match="FP8"):
        read_reply("s", message)


def test_a_rejection_is_raised():
    with pytest.raises(StreamError, match="no room for it"):
        read_reply("s", service_pb2.ModelStreamInferResponse(error_message="no room for it"))


def requested(requests: list[Request], known: Collection[str]) -> list[list[str]]:
    return [[output.name for output in model_request("asr", "s", request, known).outputs] for request in requests]


def test_alternatives_are_requested_for_final_results_only():
    splitter, samples = RequestSplitter("s"), np.zeros(160, np.float32)
    requests = [
        *splitter.split(samples),
        *splitter.split(samples, finalize=True),
        *splitter.split(samples, is_end=True),
    ]
    alternatives = {"ALTERNATIVES", "ALTERNATIVE_SCORES", "ALTERNATIVE_WORDS"}
    every = {*OUTPUTS_WITHIN_SEGMENT, *alternatives}
    assert requested(requests, every) == [list(OUTPUTS_WITHIN_SEGMENT), [], []], "no names: the reply has all outputs"
    assert outputs(0, 4000, False).keys() - set(OUTPUTS_WITHIN_SEGMENT) == alternatives


def test_only_outputs_that_the_server_has_are_requested():
    """Triton rejects others: earlier servers have no STABLE_CHARS and LIST_COUNTS, only gateways have WORD_SPEAKER."""
    requests = RequestSplitter("s").split(np.zeros(160, np.float32))
    assert requested(requests, ()) == [[]], "not known before the first reply"
    earlier = output_names(reply(outputs(0, 4000, False)))
    assert set(OUTPUTS_WITHIN_SEGMENT) - earlier == {"STABLE_CHARS", "LIST_COUNTS", "WORD_SPEAKER"}
    assert requested(requests, earlier) == [[name for name in OUTPUTS_WITHIN_SEGMENT if name in earlier]]
