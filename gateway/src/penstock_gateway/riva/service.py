"""Riva's gRPC service: messages in, results out. Knows no replica."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from penstock_common.audio.pcm import header
from penstock_common.options import is_live_window
from penstock_gateway import limits
from penstock_gateway.config import Config
from penstock_gateway.errors import GatewayCode, GatewayError, shown_names
from penstock_gateway.gateway import Gateway
from penstock_gateway.riva.audio_input import CallAudio
from penstock_gateway.riva.call import Call
from penstock_gateway.riva.proto import riva_asr_pb2 as riva
from penstock_gateway.riva.proto.riva_common_pb2 import RequestId
from penstock_gateway.riva.request_mapping import changed, map_request
from penstock_gateway.rpc.api import MAX_METADATA_CHARS, Context, call_key, only_message, rejecting
from penstock_gateway.security.budget import WriteLimit
from penstock_gateway.stream.channels import CallStreams
from penstock_gateway.stream.options import ModelGroup

PROTOCOL = "riva"
"""Name of the protocol in metrics and logs."""
SERVICE = "nvidia.riva.asr.RivaSpeechRecognition"
IGNORED = "penstock-ignored"
"""Key of the initial metadata that names the fields without an effect."""
WARNING = "penstock-warning"
"""Key of the trailing metadata that says where samples of a recording are missing."""
_KINDS = ("online", "offline")
"""For streams and for recordings: an offline model has the second one only."""
_M = TypeVar("_M", bound=Message)


def add_riva_service(gateway: Gateway, server: grpc.aio.Server) -> None:
    """Registers the service. Messages arrive as bytes, so that a broken one is answered like any other error.

    No method is unary_unary: gRPC would read its message, however large, before it calls the handler.
    """
    service = RivaService(gateway)
    handlers = {
        "Recognize": grpc.stream_unary_rpc_method_handler(
            service.recognize, response_serializer=riva.RecognizeResponse.SerializeToString
        ),
        "StreamingRecognize": grpc.stream_stream_rpc_method_handler(
            service.streaming_recognize, response_serializer=riva.StreamingRecognizeResponse.SerializeToString
        ),
        "GetRivaSpeechRecognitionConfig": grpc.stream_unary_rpc_method_handler(
            service.recognition_config, response_serializer=riva.RivaSpeechRecognitionConfigResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


class RivaService:
    """The three methods of `RivaSpeechRecognition`."""

    def __init__(self, gateway: Gateway):
        self._gateway = gateway

    async def recognition_config(self, _: object, context: Context) -> riva.RivaSpeechRecognitionConfigResponse:
        """The models, each once for streams, if it takes live audio, and once for recordings."""
        gateway = self._gateway
        async with rejecting(context, gateway, PROTOCOL), only_message(context, gateway, _model_name) as name:
            groups = [gateway.streams.group(name)] if name else gateway.streams.groups
            configs = [self._model_config(group, kind) for group in groups for kind in _KINDS[not group.takes_live :]]
            return riva.RivaSpeechRecognitionConfigResponse(model_config=configs)

    async def recognize(self, _: object, context: Context) -> riva.RecognizeResponse:
        """One recording, as fast as it is recognized; the response has a result for each segment."""
        async with rejecting(context, self._gateway, PROTOCOL):
            self._gateway.streams.check_room(call_key())
            return await self._recognize(context)

    async def _recognize(self, context: Context) -> riva.RecognizeResponse:
        """Frees the recording at once: this frame ends before an error is sent."""
        async with (
            only_message(context, self._gateway, _recording) as recording,
            self._call(recording.config, context, is_file=True) as call,
        ):
            results = await call.recognize(recording.audio)
            _remark(context, call)
            return riva.RecognizeResponse(results=results, id=recording.id)

    async def streaming_recognize(self, _: object, context: Context) -> None:
        """Audio as it is recorded; results as they are recognized."""
        async with rejecting(context, self._gateway, PROTOCOL):
            self._gateway.streams.check_room(call_key())
            messages = _messages(context)
            with self._gateway.beginning.taken(call_key()):  # a first message may be as large as a recording
                streaming = await _first_config(messages)
            async with self._call(streaming.config, context, has_interim_results=streaming.interim_results) as call:
                limit = WriteLimit()
                await call.stream(messages, lambda one: limit.write(context.write(one)), streaming.interim_results)
                _remark(context, call)

    @asynccontextmanager
    async def _call(
        self, config: riva.RecognitionConfig, context: Context, is_file: bool = False, has_interim_results: bool = False
    ) -> AsyncIterator[Call]:
        """A stream for this configuration until the block ends, whatever ends it.

        The audio of a stream for an offline model without a live window is recognized at its end.
        """
        settings, streams = self._gateway.config, self._gateway.streams
        group = streams.group(config.model)
        request = map_request(config, group, settings)
        ignored = list(request.ignored)
        if not (is_file or group.takes_live or is_live_window(request.options.extra.get("window"))):
            if has_interim_results and settings.strict:
                group.check_live()
            ignored += ["interim_results"] if has_interim_results else []
            is_file = True
        options = replace(request.options, is_file=is_file)
        live = await CallStreams.open(streams, options, call_key(), PROTOCOL, request.audio.channels)

        async def change(runtime_config: Mapping[str, str], is_forced: bool) -> bool:
            nonlocal config
            later = changed(config, runtime_config)
            options = replace(map_request(later, group, settings).options, is_file=is_file)
            for each in live.streams:
                changes = await streams.change(each, replace(options, channel=each.options.channel), is_forced)
            if changes is None:
                message = "runtime_config has options that cannot change in this stream; accepted: another stream"
                raise GatewayError(GatewayCode.FIELD_INVALID, message, "runtime_config")
            config = later
            return bool(changes)

        try:
            names = ",".join(shown_names(ignored, MAX_METADATA_CHARS))
            await context.send_initial_metadata(((IGNORED, names),) if names else ())
            with self._gateway.recordings.growing(call_key().name) as grow:
                keep, max_seconds = partial(_keep, grow, settings), settings.max_file_minutes * 60
                audio = CallAudio(request.audio, call_key().name, group.sample_rate_hz, max_seconds, keep)
                yield Call(live, audio, request.results, change)
        finally:
            await live.cancel()

    def _model_config(self, group: ModelGroup, kind: str) -> riva.RivaSpeechRecognitionConfigResponse.Config:
        parameters = {
            "type": kind,
            "language_code": ",".join(group.languages or group.detected_languages) or self._gateway.config.language,
            "sample_rate": str(group.sample_rate_hz),
            "max_alternatives": str(group.max_beam_size),
        }
        return riva.RivaSpeechRecognitionConfigResponse.Config(model_name=group.name, parameters=parameters)


def parse(kind: type[_M], data: bytes) -> _M:
    """A message of this kind. GatewayError for bytes that are none."""
    try:
        message: _M = kind.FromString(data)
    except DecodeError:
        raise GatewayError(GatewayCode.FIELD_INVALID, f"the message is not a {kind.DESCRIPTOR.full_name}") from None
    return message


def _remark(context: Context, call: Call) -> None:
    """Says in the trailing metadata where samples of a recording are missing."""
    if call.remarks:
        context.set_trailing_metadata(((WARNING, header(call.remarks)),))


def _keep(grow: Callable[[int], None], settings: Config, size: int) -> None:
    """Takes room for compressed audio of this size in bytes. GatewayError."""
    if size > settings.max_upload_bytes:
        message = f"the compressed audio has {size:,} bytes or more; accepted: up to {settings.max_upload_mb} MB"
        raise GatewayError(GatewayCode.TOO_LARGE, f"{message} (--max-upload-mb)")
    grow(size)


class _Recording(NamedTuple):
    """A RecognizeRequest, which holds a second copy of its audio."""

    config: riva.RecognitionConfig
    audio: bytes
    id: RequestId | None


def _check_fields(size: int) -> None:
    """GatewayError where the fields beside the audio have too many bytes: as texts they take more memory."""
    if size > limits.MAX_FIELDS_BYTES:
        message = f"the fields of the message have {size:,} bytes; accepted: {limits.MAX_FIELDS_BYTES:,}"
        raise GatewayError(GatewayCode.TOO_LARGE, message)


def _recording(data: bytes) -> _Recording:
    message, config = parse(riva.RecognizeRequest, data), riva.RecognitionConfig()
    audio = message.audio  # a copy
    _check_fields(len(data) - len(audio))
    config.CopyFrom(message.config)
    return _Recording(config, audio, RequestId(value=message.id.value) if message.HasField("id") else None)


def _model_name(data: bytes) -> str:
    _check_fields(len(data))
    return str(parse(riva.RivaSpeechRecognitionConfigRequest, data).model_name)


async def _messages(context: Context) -> AsyncIterator[riva.StreamingRecognizeRequest]:
    """The messages of a stream until the client has sent its last one."""
    while (data := await context.read()) is not grpc.aio.EOF:
        if len(data) > limits.MAX_MESSAGE_BYTES:
            message = f"a message has {len(data)} bytes; accepted: {limits.MAX_MESSAGE_BYTES}"
            raise GatewayError(GatewayCode.TOO_LARGE, message, "audio_content")
        yield parse(riva.StreamingRecognizeRequest, data)


async def _first_config(messages: AsyncIterator[riva.StreamingRecognizeRequest]) -> riva.StreamingRecognitionConfig:
    """The configuration, which the first message must have."""
    try:
        first = await asyncio.wait_for(anext(messages, None), limits.MAX_SILENT_S)
    except asyncio.TimeoutError:
        raise GatewayError(GatewayCode.STREAM_IDLE, f"no message for {limits.MAX_SILENT_S:g} s") from None
    if first is None or not first.HasField("streaming_config"):
        message = "the first message has no streaming_config"
        raise GatewayError(GatewayCode.FIELD_INVALID, message, "streaming_config")
    _check_fields(first.streaming_config.ByteSize())
    return first.streaming_config
