"""KServe's gRPC service: messages in, results out. Knows a stream only by its key and id."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import NamedTuple, TypeVar

import grpc
from google.protobuf.json_format import ParseDict
from tritonclient.grpc import service_pb2

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.gateway import Gateway
from penstock_gateway.kserve.errors import shown_error, text_of
from penstock_gateway.kserve.grpc_wire import read_name, read_request, write_response
from penstock_gateway.kserve.model import model_config, model_metadata, server_metadata
from penstock_gateway.kserve.request import InferRequest
from penstock_gateway.kserve.sequences import PROTOCOL as PROTOCOL
from penstock_gateway.kserve.sequences import Results, Sequences
from penstock_gateway.rpc.api import Context, call_key, only_message, rejecting
from penstock_gateway.security.budget import KeyLimit
from penstock_gateway.security.keys import ApiKey
from penstock_gateway.security.limits import MAX_UNREAD_S, WriteLimit

SERVICE = "inference.GRPCInferenceService"
_MAX_UNANSWERED = 64
"""Requests of one call; the next one is read when one of them is answered."""
_SPARE_CALLS = 8
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")
"""Metadata in which proxies name their client."""
_T = TypeVar("_T")


def add_kserve_service(gateway: Gateway, server: grpc.aio.Server) -> None:
    """Registers the service. Messages arrive as bytes, so that a broken one is answered like any other error.

    No method is unary_unary: gRPC would read its message, however large, before it calls the handler.
    """
    service = KServeService(gateway)
    unary = {
        "ServerLive": service.server_live,
        "ServerReady": service.server_ready,
        "ServerMetadata": service.server_metadata,
        "ModelReady": service.model_ready,
        "ModelMetadata": service.model_metadata,
        "ModelConfig": service.model_config,
        "ModelInfer": service.infer,
    }
    handlers = {
        name: grpc.stream_unary_rpc_method_handler(
            method, response_serializer=getattr(service_pb2, f"{name}Response").SerializeToString
        )
        for name, method in unary.items()
    }
    handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
        service.stream_infer, response_serializer=service_pb2.ModelStreamInferResponse.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


class KServeService:
    """The methods of `GRPCInferenceService` for the model `asr`."""

    def __init__(self, gateway: Gateway):
        self._gateway = gateway
        self._sequences = Sequences(gateway.streams)
        self._calls = KeyLimit("calls of ModelStreamInfer", lambda streams: 2 * streams + _SPARE_CALLS)
        """Each may have a message on its way."""

    async def server_live(self, _: object, context: Context) -> service_pb2.ServerLiveResponse:
        """The process answers."""
        return service_pb2.ServerLiveResponse(live=True)

    async def server_ready(self, _: object, context: Context) -> service_pb2.ServerReadyResponse:
        """A replica answers, so that a stream can start."""
        return service_pb2.ServerReadyResponse(ready=bool(self._gateway.streams.groups))

    async def server_metadata(self, _: object, context: Context) -> service_pb2.ServerMetadataResponse:
        """Metadata of the gateway."""
        return ParseDict(server_metadata(), service_pb2.ServerMetadataResponse())

    async def model_ready(self, _: object, context: Context) -> service_pb2.ModelReadyResponse:
        """As the gateway is."""
        async with self._message(context, partial(read_name, service_pb2.ModelReadyRequest)):
            return service_pb2.ModelReadyResponse(ready=bool(self._gateway.streams.groups))

    async def model_metadata(self, _: object, context: Context) -> service_pb2.ModelMetadataResponse:
        """Inputs and outputs of the model."""
        async with self._message(context, partial(read_name, service_pb2.ModelMetadataRequest)):
            return ParseDict(model_metadata(), service_pb2.ModelMetadataResponse())

    async def model_config(self, _: object, context: Context) -> service_pb2.ModelConfigResponse:
        """Inputs, outputs and parameters of the model."""
        async with self._message(context, partial(read_name, service_pb2.ModelConfigRequest)):
            config = model_config(self._gateway.streams.group(""))
            return ParseDict({"config": config}, service_pb2.ModelConfigResponse())

    async def infer(self, _: object, context: Context) -> service_pb2.ModelInferResponse:
        """The next part of a stream's audio; the response has what is new."""
        async with self._rejecting(context):
            return await self._infer(context)

    async def _infer(self, context: Context) -> service_pb2.ModelInferResponse:
        is_read = False

        def read(data: bytes) -> tuple[str, InferRequest]:
            nonlocal is_read
            is_read = True
            return read_request(data)

        try:
            async with only_message(context, self._gateway, read) as (request_id, request):
                results = await self._sequences.infer(request, call_key(), _client(context))
                return write_response(request_id, request.outputs, results)
        except (asyncio.CancelledError, GatewayError) as error:
            is_cut = not isinstance(error, GatewayError) or error.code is ErrorCode.FIELD_INVALID  # no message
            if is_cut and not is_read:  # cancelled: its audio is missing, and its stream is not known
                await self._sequences.lose(call_key(), _client(context))
            raise

    async def stream_infer(self, _: object, context: Context) -> None:
        """Requests of any streams, answered in their order; an error is a response, and the call goes on."""
        key = call_key()
        async with self._rejecting(context):
            with self._calls.taken(key):
                await self._exchange(_Call(context), key)

    async def _exchange(self, call: "_Call", key: ApiKey) -> None:
        """Reads requests and writes responses until both have ended; what is open then has lost its client.

        The last message and a client that has vanished look alike: gRPC reports the latter later, if at all.
        """
        reading = asyncio.create_task(self._read(call, key))
        try:
            await self._write(call)
            await reading
        finally:
            reading.cancel()
            try:
                await asyncio.gather(reading, return_exceptions=True)
            finally:  # the client may vanish just now, which ends this wait
                await self._sequences.end_call(call)

    async def _read(self, call: "_Call", key: ApiKey) -> None:
        """Sends the requests of a call on as they arrive."""
        try:
            while True:
                await call.room.acquire()
                if (data := await call.context.read()) is grpc.aio.EOF:
                    return
                request_id = ""
                try:
                    request_id, request = read_request(data)
                    answer = _Answer(request_id, request.outputs, await self._sequences.send(request, key, call))
                except GatewayError as error:
                    answer = _Answer(request_id, (), _rejected(error))
                call.answers.put_nowait(answer)
        finally:
            call.answers.put_nowait(None)

    async def _write(self, call: "_Call") -> None:
        limit = WriteLimit(MAX_UNREAD_S)
        while (answer := await call.answers.get()) is not None:
            response = await self._response(answer)
            await limit.write(call.context.write(response))
            call.room.release()

    async def _response(self, answer: "_Answer") -> service_pb2.ModelStreamInferResponse:
        try:
            response = write_response(answer.id, answer.outputs, await answer.results)
            return service_pb2.ModelStreamInferResponse(infer_response=response)
        except GatewayError as error:
            self._gateway.note_rejection(PROTOCOL, error)
            rejected = service_pb2.ModelInferResponse(id=answer.id)
            return service_pb2.ModelStreamInferResponse(error_message=text_of(error), infer_response=rejected)

    @asynccontextmanager
    async def _message(self, context: Context, read: Callable[[bytes], _T]) -> AsyncIterator[_T]:
        """Reads a unary call's message with `read`; ends the call with the status of an error."""
        async with self._rejecting(context), only_message(context, self._gateway, read) as made:
            yield made

    def _rejecting(self, context: Context) -> AbstractAsyncContextManager[None]:
        return rejecting(context, self._gateway, PROTOCOL, shown_error)


class _Answer(NamedTuple):
    """To one request of a call."""

    id: str
    """The request's."""
    outputs: Sequence[str]
    results: "asyncio.Future[Results]"


class _Call:
    """One ModelStreamInfer call."""

    def __init__(self, context: Context):
        self.context = context
        self.room = asyncio.Semaphore(_MAX_UNANSWERED)
        self.answers: asyncio.Queue[_Answer | None] = asyncio.Queue()
        """In the order of the requests; None after the last one."""


def _client(context: Context) -> str:
    """Names the connection, and behind a proxy, which sends the calls of many clients over one, also the client."""
    metadata = context.invocation_metadata() or ()
    named = [str(value) for name, value in metadata if name in _FORWARDED]
    return " ".join([context.peer(), *named])


def _rejected(error: GatewayError) -> "asyncio.Future[Results]":
    """The results of a request that was not sent."""
    results: asyncio.Future[Results] = asyncio.get_running_loop().create_future()
    results.set_exception(error.again())
    results.exception()  # else asyncio reports it where the client has gone
    return results
