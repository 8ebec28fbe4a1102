"""What both gRPC fronts share: a piece as a request, a reply as a result, a channel's options. Opens nothing.

One ModelStreamInfer call carries one stream: the server writes a call's responses in the order of its requests, so
streams sharing a call would wait for each other. Calls are made through tritonclient's generated stub: its
`InferenceServerClient` has one stream for each client object, and leaves a thread behind for each that is cancelled.

The header `triton_grpc_error`, which would put a status code beside an error's message, is not used: a request after
the refused one then ends tritonserver 2.51.0 with a segmentation fault.
"""

import struct
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from penstock_client.connection_options import ConnectionOptions
from penstock_client.endpoint import Endpoint, read_pem
from penstock_client.errors import StreamId
from penstock_client.protocol import (
    INPUT_DATATYPE,
    INPUT_NAME,
    OUTPUTS_WITHIN_SEGMENT,
    Piece,
    Result,
    parse_values,
    refusal,
)

_CHANNEL_OPTIONS = (
    # Without these, clients of one process share a connection and the pause after a failed attempt, up to minutes.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
)
_KEEPALIVE_TIMEOUT_MS = 10_000

_FORMATS: dict[str, Any] = {"INT32": "i", "FP32": "f", "BOOL": "?"}
_WITHIN_SEGMENT = [
    service_pb2.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in OUTPUTS_WITHIN_SEGMENT
]
_LENGTH = struct.Struct("<I")
_PARAMETER_FIELDS = {str: "string_param", int: "int64_param", float: "double_param", bool: "bool_param"}


def channel_options(options: ConnectionOptions) -> list[tuple[str, int]]:
    """The options of a channel. Probes are sent only while there are open streams, which is gRPC's default."""
    if not options.keepalive_s:
        return [*_CHANNEL_OPTIONS]
    return [
        *_CHANNEL_OPTIONS,
        ("grpc.keepalive_time_ms", max(1, round(1000 * options.keepalive_s))),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ]


def open_channel(module: Any, endpoint: Endpoint) -> Any:
    """A channel of `grpc` or `grpc.aio`, which is the `module`. It connects when it is used."""
    options = channel_options(endpoint.options)
    if not endpoint.is_secure:
        return module.insecure_channel(endpoint.url, options=options)
    return module.secure_channel(endpoint.url, _credentials(endpoint.options), options=options)


def check_certificates(endpoint: Endpoint) -> None:
    """Reads the files of certificates, as opening a channel will. Raises ValueError."""
    if endpoint.is_secure:
        _credentials(endpoint.options)


def call_metadata(options: ConnectionOptions) -> tuple[tuple[str, str], ...]:
    """The headers of a call."""
    return tuple(options.headers.items())


def model_request(model: str, stream_id: StreamId, piece: Piece) -> service_pb2.ModelInferRequest:
    """The request that carries a piece."""
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name=INPUT_NAME, datatype=INPUT_DATATYPE, shape=[1, piece.samples])
    request.raw_input_contents.append(piece.audio)
    if not piece.ends_segment:
        request.outputs.extend(_WITHIN_SEGMENT)
    if isinstance(stream_id, str):
        request.parameters["sequence_id"].string_param = stream_id
    else:
        request.parameters["sequence_id"].int64_param = stream_id
    request.parameters["sequence_start"].bool_param = piece.is_first
    request.parameters["sequence_end"].bool_param = piece.is_last
    for name, value in piece.parameters.items():
        setattr(request.parameters[name], _PARAMETER_FIELDS[type(value)], value)
    return request


def read_reply(model: str, stream_id: StreamId, reply: service_pb2.ModelStreamInferResponse) -> Result:
    """The result that a reply holds. Raises StreamError for a refusal."""
    if reply.error_message:
        raise refusal(stream_id, reply.error_message, model)
    response = reply.infer_response
    outputs = zip(response.outputs, response.raw_output_contents, strict=False)
    contents = {output.name: (output.datatype, content) for output, content in outputs}

    def values(name: str) -> list[Any] | None:
        return _values(*contents[name]) if name in contents else None

    return parse_values(stream_id, values)


def reason(error: grpc.RpcError) -> str:
    """Why a call has ended, in gRPC's words."""
    return str(error.details() or error.code().name)


def _values(datatype: str, content: bytes) -> list[Any]:
    """The values of an output. tritonclient's `InferResult` takes several times as long, most of it with arrays."""
    if not content:
        return []
    if datatype == "BYTES":
        return _texts(content)
    return memoryview(content).cast(_FORMATS[datatype]).tolist()


def _texts(content: bytes) -> list[bytes]:
    """Each text is four bytes of length, little-endian, and the text itself."""
    texts, begin = [], 0
    while begin < len(content):
        (length,) = _LENGTH.unpack_from(content, begin)
        begin += _LENGTH.size + length
        texts.append(content[begin - length : begin])
    if begin != len(content):
        raise ValueError("a text is cut short")
    return texts


def _credentials(options: ConnectionOptions) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=read_pem(options.root_certificates),
        private_key=read_pem(options.client_key),
        certificate_chain=read_pem(options.client_certificate),
    )
