"""KServe's HTTP bodies: JSON, with tensors as numbers or as bytes after it. No I/O."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field
from pydantic_core import to_json

from penstock_client import Result
from penstock_client.audio.tracks import Samples
from penstock_client.protocol import MAX_REQUEST_SAMPLES, MODEL_NAME
from penstock_gateway.errors import ErrorCode, GatewayError, shown
from penstock_gateway.kserve.errors import invalid_request
from penstock_gateway.kserve.model import VERSION, make_outputs
from penstock_gateway.kserve.request import MAX_AUDIO_BYTES, MAX_FIELDS_BYTES, InferRequest, Tensor, make_request
from penstock_gateway.validation import Array, ClosedFields, Fields, parse_object, read_fields

HEADER_LENGTH = "Inference-Header-Content-Length"
MAX_BODY_BYTES = 26 * MAX_REQUEST_SAMPLES + MAX_FIELDS_BYTES
"""A number of JSON with a comma has up to 26 characters."""
_MAX_NUMBERS, _MAX_OBJECTS = MAX_REQUEST_SAMPLES + 20_000, 10_000
"""Most values of a JSON text: an array or a text takes up to 30 times as much memory as in JSON."""
_MAX_INTEGER = 2**64
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class _InputParameters(ClosedFields):
    binary_data_size: Annotated[int, Field(ge=0, le=MAX_AUDIO_BYTES)] | None = None


class _Input(ClosedFields):
    name: str
    shape: Array[int]
    datatype: str
    data: Any = None
    parameters: _InputParameters = _InputParameters()


class _OutputParameters(ClosedFields):
    binary_data: bool | None = None
    classification: Literal[0] = 0


class _Output(ClosedFields):
    name: str
    parameters: _OutputParameters = _OutputParameters()


class _Body(Fields):
    id: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    inputs: Array[_Input]
    outputs: Array[_Output] = Field(default_factory=list)


class HttpRequest(NamedTuple):
    """A request, and how its client wants the answer."""

    id: str
    request: InferRequest
    binary: frozenset[str]
    """Outputs to send as bytes."""


class HttpResponse(NamedTuple):
    """A response; with `header_length`, bytes follow a JSON text of that length."""

    content: bytes
    header_length: int | None


def read_body(body: bytes, header_length: str | None) -> HttpRequest:
    """The request of a body; `header_length` as in its HTTP header. GatewayError as `make_request`, and for no JSON."""
    size = len(body)
    if header_length is not None:
        if not header_length.isdecimal() or len(header_length) > 9 or not 0 < int(header_length) <= size:
            message = f"{HEADER_LENGTH} is {shown(header_length)}; accepted: 1 to the {size} bytes of the body"
            raise invalid_request(message)
        size = int(header_length)
    fields = _read_json(body[:size])
    parameters = dict(fields.parameters)
    binary_by_default = parameters.pop("binary_data_output", False)
    if not isinstance(binary_by_default, bool):
        raise invalid_request(f"binary_data_output is {shown(binary_by_default)}; accepted: true, false")
    tensors = [Tensor(one.name, one.datatype, one.shape) for one in fields.inputs]
    names = [output.name for output in fields.outputs]
    request = make_request(parameters, tensors, _values(fields.inputs, body[size:]), names)
    wishes = {output.name: output.parameters.binary_data for output in fields.outputs}
    binary = [name for name in request.outputs if _first(wishes.get(name), binary_by_default)]
    return HttpRequest(fields.id, request, frozenset(binary))


def write_response(request: HttpRequest, results: Sequence[Result]) -> HttpResponse:
    """The response with the outputs that the request names."""
    described, contents = [], []
    for output in make_outputs(results, request.request.outputs):
        one: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": [1, len(output.values)]}
        if output.name in request.binary:
            contents.append(output.raw())
            one["parameters"] = {"binary_data_size": len(contents[-1])}
        else:
            one["data"] = output.numbers()
        described.append(one)
    names = {"id": request.id} if request.id else {}
    header = to_json({**names, "model_name": MODEL_NAME, "model_version": VERSION, "outputs": described})
    return HttpResponse(b"".join([header, *contents]), len(header) if request.binary else None)


def _read_json(text: bytes) -> _Body:
    objects = max(text.count(b"[") + text.count(b"{"), text.count(b'"') // 2)
    if text.count(b",") > _MAX_NUMBERS or objects > _MAX_OBJECTS:
        message = f"the request has more than {_MAX_NUMBERS:,} values or {_MAX_OBJECTS:,} texts, arrays and objects"
        raise GatewayError(ErrorCode.TOO_LARGE, message)
    fields = parse_object(text)
    if fields is None:
        raise invalid_request("the body is not a JSON object")
    if text.count(b":") - sum(string.group().count(b":") for string in _STRING.finditer(text)) != _keys(fields):
        raise invalid_request("the body has a key twice in an object; accepted: once")  # parsers differ in which counts
    try:
        return read_fields(_Body, fields, "")
    except GatewayError as error:
        raise invalid_request(error.message) from None


def _keys(value: Any) -> int:
    """Those of all objects in a value."""
    parts = value.values() if isinstance(value, dict) else value
    return (len(value) if isinstance(value, dict) else 0) + sum(
        _keys(one) for one in parts if type(one) in (dict, list)
    )


def _values(inputs: Sequence[_Input], binary: bytes) -> Samples | bytes:
    """Those of the only input, from its `data` or from the bytes after the JSON; a wrong number is found later."""
    if len(inputs) != 1:
        return b""
    size, data = inputs[0].parameters.binary_data_size, inputs[0].data
    if (size or 0) != len(binary) or (size is not None) == (data is not None):
        what = f"binary_data_size is {size}, data is {'given' if data is not None else 'missing'}"
        accepted = "accepted: data, or as many bytes as binary_data_size"
        raise invalid_request(f"{what}, {len(binary)} bytes follow the JSON; {accepted}")
    if size is not None:
        return binary
    if (numbers := _numbers(data)) is None:
        raise invalid_request(f"data of {shown(inputs[0].name)} are not numbers")
    with np.errstate(over="ignore"):
        return np.array(numbers, np.float32)


def _numbers(data: Any) -> list[int | float] | None:
    """Those of a number or of even arrays, in order; None for anything else.

    numpy would convert mixed values: numbers beside a text become texts, each as long as the longest.
    """
    values = [data]
    while list in (types := set(map(type, values))):
        if len(types) > 1 or len(set(map(len, values))) > 1:
            return None
        values = [value for array in values for value in array]
    if not types <= {int, float}:
        return None
    is_large = int in types and any(type(value) is int and abs(value) > _MAX_INTEGER for value in values)
    return None if is_large else values


def _first(wish: bool | None, default: bool) -> bool:
    return default if wish is None else wish
