"""KServe's protobuf messages: requests into what the gateway checks, results into responses. No I/O."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message
from tritonclient.grpc import service_pb2

from penstock_client import Result
from penstock_client.protocol import MODEL_NAME
from penstock_gateway.errors import ErrorCode, GatewayError, shown
from penstock_gateway.kserve.errors import invalid_request
from penstock_gateway.kserve.model import VERSION, check_model
from penstock_gateway.kserve.outputs import make_outputs
from penstock_gateway.kserve.request import MAX_AUDIO_BYTES, MAX_FIELDS_BYTES, InferRequest, Tensor, make_request
from penstock_gateway.stream.live_stream import Samples

MAX_INFER_BYTES = MAX_AUDIO_BYTES + MAX_FIELDS_BYTES
_M = TypeVar("_M", bound=Message)


def _parse(kind: type[_M], data: bytes) -> _M:
    """A message of this kind. GatewayError for one that is too large, and for bytes that are none."""
    if len(data) > MAX_INFER_BYTES:
        raise GatewayError(ErrorCode.TOO_LARGE, f"a message has {len(data)} bytes; accepted: {MAX_INFER_BYTES}")
    try:
        message: _M = kind.FromString(data)
    except DecodeError:
        raise invalid_request(f"the message is not a {kind.DESCRIPTOR.full_name}") from None
    return message


def read_name(kind: type[service_pb2.ModelReadyRequest], data: bytes) -> None:
    """A message that names the model. GatewayError for another model than `asr`."""
    message = _parse(kind, data)
    check_model(message.name, message.version)


def read_request(data: bytes) -> tuple[str, InferRequest]:
    """The id of a request and what it carries. GatewayError as `make_request`, and for another model."""
    message = _parse(service_pb2.ModelInferRequest, data)
    check_model(message.model_name, message.model_version)
    for part in (*message.inputs, *message.outputs):
        if part.parameters:
            names = shown(sorted(part.parameters)[0])
            raise invalid_request(f"{shown(part.name)} has the parameter {names}; accepted: none, no shared memory")
    parameters = {
        name: getattr(value, field) if (field := value.WhichOneof("parameter_choice")) else None
        for name, value in message.parameters.items()
    }
    tensors = [Tensor(tensor.name, tensor.datatype, tensor.shape) for tensor in message.inputs]
    request = make_request(parameters, tensors, _values(message), [output.name for output in message.outputs])
    return message.id, request


def write_response(
    request_id: str, outputs: Sequence[str], results: Sequence[Result]
) -> service_pb2.ModelInferResponse:
    """The response to a request that names these outputs."""
    response = service_pb2.ModelInferResponse(model_name=MODEL_NAME, model_version=VERSION, id=request_id)
    for output in make_outputs(results, outputs):
        response.outputs.add(name=output.name, datatype=output.datatype, shape=[1, len(output.values)])
        response.raw_output_contents.append(output.raw())
    return response


def _values(message: service_pb2.ModelInferRequest) -> Samples | bytes:
    """The content of the only input: bytes beside the inputs, or typed numbers within."""
    raw = message.raw_input_contents
    typed = [tensor.contents for tensor in message.inputs if tensor.HasField("contents")]
    if raw and typed:
        raise invalid_request("there are raw_input_contents and contents; accepted: one of them")
    if len(raw) > 1:
        raise invalid_request(f"there are {len(raw)} raw_input_contents; accepted: 1")
    if not typed:
        return bytes(raw[0]) if raw else b""
    others = [field.name for field, _ in typed[0].ListFields() if field.name != "fp32_contents"]
    if others:
        raise invalid_request(f"contents have {others[0]}; accepted: fp32_contents")
    return np.array(typed[0].fp32_contents, np.float32)
