"""KServe's gRPC service: messages in, results out. Knows a stream only by its key and id."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc
from google.protobuf.json_format import ParseDict
from tritonclient.grpc import service_pb2

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.gateway import Gateway
from penstock_gateway.kserve.errors import status_of, text_of
from penstock_gateway.kserve.grpc_wire import parse, read_request, write_response
from penstock_gateway.kserve.model import check_model, model_config, model_metadata, server_metadata
from penstock_gateway.kserve.sequences import PROTOCOL, Results, Sequences
from penstock_gateway.security.keys import ApiKey
from penstock_gateway.security.limits import MAX_UNREAD_S, WriteLimit

SERVICE = "inference.GRPCInferenceService"
_MAX_UNANSWERED = 64
"""Requests of one call; the next one is read when one of them is answered."""
_log = logging.getLogger("penstock_gateway.kserve")
_Context = Any  # grpc.aio.ServicerContext, which has no types


def add_kserve_service(gateway: Gateway, server: grpc.aio.Server) -> None:
    """Registers the service. Messages arrive as bytes, so that a broken one is answered like any other error."""
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
        name: grpc.unary_unary_rpc_method_handler(
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

    async def server_live(self, _: bytes, context: _Context) -> service_pb2.ServerLiveResponse:
        """The process answers. Needs no key."""
        return service_pb2.ServerLiveResponse(live=True)

    async def server_ready(self, _: bytes, context: _Context) -> service_pb2.ServerReadyResponse:
        """A replica answers, so that a stream can start. Needs no key."""
        return service_pb2.ServerReadyResponse(ready=bool(self._gateway.streams.groups))

    async def server_metadata(self, _: bytes, context: _Context) -> service_pb2.ServerMetadataResponse:
        """Metadata of the gateway."""
        async with self._rejecting(context):
            return ParseDict(server_metadata(), service_pb2.ServerMetadataResponse())

    async def model_ready(self, data: bytes, context: _Context) -> service_pb2.ModelReadyResponse:
        """As the gateway is."""
        async with self._rejecting(context):
            message = parse(service_pb2.ModelReadyRequest, data)
            check_model(message.name, message.version)
            return service_pb2.ModelReadyResponse(ready=bool(self._gateway.streams.groups))

    async def model_metadata(self, data: bytes, context: _Context) -> service_pb2.ModelMetadataResponse:
        """Inputs and outputs of the model."""
        async with self._rejecting(context):
            message = parse(service_pb2.ModelMetadataRequest, data)
            check_model(message.name, message.version)
            return ParseDict(model_metadata(), service_pb2.ModelMetadataResponse())

    async def model_config(self, data: bytes, context: _Context) -> service_pb2.ModelConfigResponse:
        """Inputs, outputs and parameters of the model."""
        async with self._rejecting(context):
            message = parse(service_pb2.ModelConfigRequest, data)
            check_model(message.name, message.version)
            config = model_config(self._gateway.streams.group(""))
            return ParseDict({"config": config}, service_pb2.ModelConfigResponse())

    async def infer(self, data: bytes, context: _Context) -> service_pb2.ModelInferResponse:
        """The next part of a stream's audio; the response has what is new."""
        async with self._rejecting(context) as key:
            message = parse(service_pb2.ModelInferRequest, data)
            request = read_request(message)
            results = await (await self._sequences.send(request, key))
            return write_response(message.id, request.outputs, results)

    async def stream_infer(self, _: object, context: _Context) -> None:
        """Requests of any streams, answered in their order; an error is a response, and the call goes on."""
        async with self._rejecting(context) as key:
            call = _Call(context)
            reading = asyncio.create_task(self._read(call, key))
            try:
                await self._write(call)
                await reading
            except BaseException:
                await self._sequences.end_call(call)
                raise
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, call: "_Call", key: ApiKey) -> None:
        """Sends the requests of a call on as they arrive."""
        try:
            while True:
                await call.room.acquire()
                if (data := await call.context.read()) is grpc.aio.EOF:
                    return
                message = service_pb2.ModelInferRequest()
                try:
                    message = parse(service_pb2.ModelInferRequest, data)
                    request = read_request(message)
                    answer = _Answer(message.id, request.outputs, await self._sequences.send(request, key, call))
                except GatewayError as error:
                    answer = _Answer(message.id, (), _rejected(error))
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
    async def _rejecting(self, context: _Context) -> AsyncIterator[ApiKey]:
        """The key of the call; ends the call with the status of an error."""
        try:
            try:
                metadata = dict(context.invocation_metadata() or ())
                yield self._gateway.access.authenticate_header(metadata.get("authorization"))
            except GatewayError as error:
                await self._abort(context, error)
            except grpc.aio.BaseError:  # the call is over already
                raise
            except Exception:  # noqa: BLE001 - whatever it is, the client gets a status
                _log.exception("a KServe call failed")
                await self._abort(context, GatewayError(ErrorCode.INTERNAL, "the gateway failed"))
        except grpc.aio.InternalError:  # the client has cancelled the call
            raise asyncio.CancelledError from None

    async def _abort(self, context: _Context, error: GatewayError) -> None:
        self._gateway.note_rejection(PROTOCOL, error)
        trailing = (("retry-after", f"{error.retry_after_s:g}"),) if error.retry_after_s is not None else ()
        await context.abort(grpc.StatusCode[status_of(error).grpc], text_of(error), trailing)


class _Answer(NamedTuple):
    """To one request of a call."""

    id: str
    """The request's."""
    outputs: Sequence[str]
    results: "asyncio.Future[Results]"


class _Call:
    """One ModelStreamInfer call."""

    def __init__(self, context: _Context):
        self.context = context
        self.room = asyncio.Semaphore(_MAX_UNANSWERED)
        self.answers: asyncio.Queue[_Answer | None] = asyncio.Queue()
        """In the order of the requests; None behind the last one."""


def _rejected(error: GatewayError) -> "asyncio.Future[Results]":
    """The results of a request that was not sent."""
    results: asyncio.Future[Results] = asyncio.get_running_loop().create_future()
    results.set_exception(error)
    results.exception()  # else asyncio reports it where the client has gone
    return results
