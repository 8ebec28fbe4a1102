"""KServe's protobuf messages: requests into what the gateway checks, results into responses. No I/O."""

from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from tritonclient.grpc import service_pb2

from penstock_client import Result
from penstock_client.protocol import MODEL_NAME
from penstock_gateway.errors import ErrorCode, GatewayError, shown
from penstock_gateway.kserve.errors import invalid_request
from penstock_gateway.kserve.model import VERSION, check_model, make_outputs
from penstock_gateway.kserve.request import MAX_AUDIO_BYTES, MAX_FIELDS_BYTES, InferRequest, Tensor, make_request

MAX_INFER_BYTES = MAX_AUDIO_BYTES + MAX_FIELDS_BYTES
_MAX_NAME_BYTES = 4096
_MAX_PARTS = 256
"""Most parts of a request; each becomes an object of up to 90 bytes, and may have two."""
_LENGTH_DELIMITED, _RAW_INPUT_CONTENTS = 2, 7
_M = TypeVar("_M", bound=Message)


def read_name(kind: type[service_pb2.ModelReadyRequest], data: bytes) -> None:
    """A message that names the model. GatewayError for another model than `asr`."""
    _check_size(len(data), _MAX_NAME_BYTES)
    message = _parse(kind, data)
    check_model(message.name, message.version)


def read_request(data: bytes) -> tuple[str, InferRequest]:
    """The id of a request and what it carries. GatewayError as `make_request`, and for another model."""
    _check_parts(data)
    message = _parse(service_pb2.ModelInferRequest, data)
    check_model(message.model_name, message.model_version)
    for part in (*message.inputs, *message.outputs):
        if part.parameters:
            name = shown(sorted(part.parameters)[0])
            raise invalid_request(f"{shown(part.name)} has the parameter {name}; accepted: none, no shared memory")
    raw = message.raw_input_contents
    if len(raw) != 1 or any(tensor.HasField("contents") for tensor in message.inputs):
        raise invalid_request("the samples are not in raw_input_contents; accepted: one entry there")
    parameters = {
        name: getattr(value, field) if (field := value.WhichOneof("parameter_choice")) else None
        for name, value in message.parameters.items()
    }
    tensors = [Tensor(tensor.name, tensor.datatype, tensor.shape) for tensor in message.inputs]
    return message.id, make_request(parameters, tensors, raw[0], [output.name for output in message.outputs])


def _parse(kind: type[_M], data: bytes) -> _M:
    try:
        message: _M = kind.FromString(data)
    except DecodeError:
        raise _broken(kind) from None
    return message


def _check_parts(data: bytes) -> None:
    """GatewayError for a request that would become large or many objects: all its fields are length-delimited."""
    _check_size(len(data), MAX_INFER_BYTES)
    at = parts = others = 0
    while at < len(data):
        tag, at = _varint(data, at)
        size, at = _varint(data, at)
        at, parts = at + size, parts + 1
        if tag & 7 != _LENGTH_DELIMITED:
            raise _broken(service_pb2.ModelInferRequest)
        if tag >> 3 != _RAW_INPUT_CONTENTS:
            others += size
        if parts > _MAX_PARTS:
            raise invalid_request(f"the message has more than {_MAX_PARTS} parts")
    _check_size(others, MAX_FIELDS_BYTES)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at an offset of protobuf's encoding, and the offset after it."""
    value = 0
    for i, byte in enumerate(data[at : at + 5]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    raise _broken(service_pb2.ModelInferRequest)


def _check_size(size: int, accepted: int) -> None:
    if size > accepted:
        raise GatewayError(ErrorCode.TOO_LARGE, f"a message has {size:,} bytes; accepted: {accepted:,}")


def _broken(kind: type[Message]) -> GatewayError:
    return invalid_request(f"the message is not a {kind.DESCRIPTOR.full_name}")


def write_response(
    request_id: str, outputs: Sequence[str], results: Sequence[Result]
) -> service_pb2.ModelInferResponse:
    """The response to a request that names these outputs."""
    response = service_pb2.ModelInferResponse(model_name=MODEL_NAME, model_version=VERSION, id=request_id)
    for output in make_outputs(results, outputs):
        response.outputs.add(name=output.name, datatype=output.datatype, shape=[1, len(output.values)])
        response.raw_output_contents.append(output.raw())
    return response
