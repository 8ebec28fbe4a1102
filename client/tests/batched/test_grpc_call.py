import numpy as np
import pytest
from tritonclient.grpc import InferResult, service_pb2

from client.tests.helpers.fake_servers import grpc_response
from client.tests.helpers.fakes import outputs, parse_reply
from penstock_client import ProtocolError, Result
from penstock_client.batched.grpc_call import output_values
from penstock_client.replies import parse_results


def read_reply(stream_id: str, message) -> list[Result]:
    return parse_results(stream_id, output_values(message.infer_response))


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
