"""Riva's gRPC service: messages in, results out. Knows a stream only as a `LiveStream`."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.gateway import Gateway
from penstock_gateway.riva.audio_input import AudioInput, check_recording
from penstock_gateway.riva.call import Call, Write
from penstock_gateway.riva.proto import riva_asr_pb2 as riva
from penstock_gateway.riva.request_mapping import map_request
from penstock_gateway.security import limits
from penstock_gateway.security.keys import ApiKey
from penstock_gateway.stream.live_stream import ModelGroup

PROTOCOL = "riva"
"""Name of the protocol in metrics and logs."""
SERVICE = "nvidia.riva.asr.RivaSpeechRecognition"
IGNORED = "penstock-ignored"
"""Key of the initial metadata that names the fields without an effect."""
_log = logging.getLogger("penstock_gateway.riva")
_MAX_METADATA_CHARS = 500
"""Clients accept 8 KiB of metadata, in which a character is up to 12 bytes."""
_M = TypeVar("_M", bound=Message)
_Context = Any  # grpc.aio.ServicerContext, which has no types


def add_riva_service(gateway: Gateway, server: grpc.aio.Server) -> None:
    """Registers the service. Messages arrive as bytes, so that a broken one is answered like any other error."""
    service = RivaService(gateway)
    handlers = {
        "Recognize": grpc.unary_unary_rpc_method_handler(
            service.recognize, response_serializer=riva.RecognizeResponse.SerializeToString
        ),
        "StreamingRecognize": grpc.stream_stream_rpc_method_handler(
            service.streaming_recognize, response_serializer=riva.StreamingRecognizeResponse.SerializeToString
        ),
        "GetRivaSpeechRecognitionConfig": grpc.unary_unary_rpc_method_handler(
            service.recognition_config, response_serializer=riva.RivaSpeechRecognitionConfigResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


class RivaService:
    """The three methods of `RivaSpeechRecognition`."""

    def __init__(self, gateway: Gateway):
        self._gateway = gateway

    async def recognition_config(self, data: bytes, context: _Context) -> riva.RivaSpeechRecognitionConfigResponse:
        """The models, each once for streams and once for recordings."""
        async with _rejecting(context, self._gateway):
            self._authenticate(context)
            name = parse(riva.RivaSpeechRecognitionConfigRequest, data).model_name
            groups = [self._gateway.streams.group(name)] if name else self._gateway.streams.groups
            configs = [self._model_config(group, kind) for group in groups for kind in ("online", "offline")]
            return riva.RivaSpeechRecognitionConfigResponse(model_config=configs)

    async def recognize(self, data: bytes, context: _Context) -> riva.RecognizeResponse:
        """One recording, as fast as it is recognized; the response has a result for each segment."""
        async with _rejecting(context, self._gateway):
            key = self._authenticate(context)
            message = parse(riva.RecognizeRequest, data)
            check_recording(message.audio)
            async with self._call(message.config, key, context) as call:
                return riva.RecognizeResponse(
                    results=await call.recognize(message.audio), id=message.id if message.HasField("id") else None
                )

    async def streaming_recognize(self, _: object, context: _Context) -> None:
        """Audio as it is recorded; results as they are recognized."""
        async with _rejecting(context, self._gateway):
            key = self._authenticate(context)
            messages = _messages(context)
            streaming = await _first_config(messages)
            async with self._call(streaming.config, key, context) as call:
                await call.stream(messages, _writer(context), streaming.interim_results)

    @asynccontextmanager
    async def _call(self, config: riva.RecognitionConfig, key: ApiKey, context: _Context) -> AsyncIterator[Call]:
        """A stream for this configuration until the block ends, whatever ends it."""
        settings, streams = self._gateway.config, self._gateway.streams
        group = streams.group(config.model)
        request = map_request(config, group, settings)
        live = await streams.open(request.options, key, PROTOCOL)
        try:
            ignored = ",".join(request.ignored)[:_MAX_METADATA_CHARS]
            await context.send_initial_metadata(((IGNORED, ignored),) if ignored else ())
            audio = AudioInput(request.audio, group.sample_rate_hz, settings.max_file_minutes * 60)
            yield Call(live, audio, request.results)
        finally:
            await live.cancel()

    def _authenticate(self, context: _Context) -> ApiKey:
        metadata = dict(context.invocation_metadata() or ())
        return self._gateway.access.authenticate_header(metadata.get("authorization"))

    def _model_config(self, group: ModelGroup, kind: str) -> riva.RivaSpeechRecognitionConfigResponse.Config:
        parameters = {
            "type": kind,
            "language_code": ",".join(group.languages) or self._gateway.config.language,
            "sample_rate": str(group.sample_rate_hz),
            "max_alternatives": str(group.max_beam_size),
        }
        return riva.RivaSpeechRecognitionConfigResponse.Config(model_name=group.name, parameters=parameters)


@asynccontextmanager
async def _rejecting(context: _Context, gateway: Gateway) -> AsyncIterator[None]:
    """Ends the call with the status of an error."""
    try:
        try:
            yield
        except GatewayError as error:
            await _abort(context, gateway, error)
        except grpc.aio.BaseError:  # the call is over already
            raise
        except Exception:  # noqa: BLE001 - whatever it is, the client gets the status of the table
            _log.exception("a Riva call failed")
            await _abort(context, gateway, GatewayError(ErrorCode.INTERNAL, "the gateway failed"))
    except grpc.aio.InternalError:  # the client has cancelled the call, and hears nothing
        raise asyncio.CancelledError from None


async def _abort(context: _Context, gateway: Gateway, error: GatewayError) -> None:
    gateway.note_rejection(PROTOCOL, error)
    trailing = (("retry-after", f"{error.retry_after_s:g}"),) if error.retry_after_s is not None else ()
    await context.abort(grpc.StatusCode[error.code.status.grpc], str(error)[:_MAX_METADATA_CHARS], trailing)


def parse(kind: type[_M], data: bytes) -> _M:
    """A message of this kind. GatewayError for bytes that are none."""
    try:
        message: _M = kind.FromString(data)
    except DecodeError:
        raise GatewayError(ErrorCode.FIELD_INVALID, f"the message is not a {kind.DESCRIPTOR.full_name}") from None
    return message


async def _messages(context: _Context) -> AsyncIterator[riva.StreamingRecognizeRequest]:
    """The messages of a stream until the client has sent its last one."""
    while (data := await context.read()) is not grpc.aio.EOF:
        if len(data) > limits.MAX_MESSAGE_BYTES:
            message = f"a message has {len(data)} bytes; accepted: {limits.MAX_MESSAGE_BYTES}"
            raise GatewayError(ErrorCode.TOO_LARGE, message, "audio_content")
        yield parse(riva.StreamingRecognizeRequest, data)


async def _first_config(messages: AsyncIterator[riva.StreamingRecognizeRequest]) -> riva.StreamingRecognitionConfig:
    """The configuration, which the first message must have."""
    try:
        first = await asyncio.wait_for(anext(messages, None), limits.MAX_SILENT_S)
    except asyncio.TimeoutError:
        raise GatewayError(ErrorCode.STREAM_IDLE, f"no message for {limits.MAX_SILENT_S:g} s") from None
    if first is None or not first.HasField("streaming_config"):
        message = "the first message has no streaming_config"
        raise GatewayError(ErrorCode.FIELD_INVALID, message, "streaming_config")
    return first.streaming_config


def _writer(context: _Context) -> Write:
    """Writes a response. GatewayError where the client does not read."""
    limit = limits.WriteLimit(limits.MAX_UNREAD_S)

    async def write(response: riva.StreamingRecognizeResponse) -> None:
        await limit.write(context.write(response))

    return write
