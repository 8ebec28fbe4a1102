"""Reads a server's offer, its model's parameters, over gRPC or HTTP."""

import asyncio
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from urllib.parse import quote

from penstock_client import limits
from penstock_client.connection import Endpoint, retry_pauses_s
from penstock_client.protocol import MAX_REPLY_BYTES, NOT_A_SERVER
from penstock_client.replies import STOPPING, UNREADABLE
from penstock_common.errors import FilesOnlyError, ServerDrainingError, ServerReplyError, ServerUnreachableError
from penstock_common.options import StreamOptions, is_live_window
from penstock_common.server_info import ServerInfo, parse_server_info, takes_files


class _NoModelError(Exception):
    """The server answers, but has no such model."""


def read_server_info(endpoint: Endpoint) -> ServerInfo:
    """Reads what the server offers. A failed attempt to connect is repeated for `connect_retry_s`.

    Raises ServerUnreachableError, and ServerReplyError for a server without the model or of another kind.
    """
    try:
        return parse_server_info(read_parameters(endpoint))
    except (KeyError, ValueError) as error:
        raise ServerReplyError(f"the server at {endpoint.url} does not say what it offers ({error})") from error


def read_parameters(endpoint: Endpoint, is_over: threading.Event | None = None) -> Mapping[str, str]:
    """Reads the parameters of the endpoint's model, as `read_server_info` without knowing what they mean.

    is_over: set once the parameters are no longer needed.
    """
    try:
        return _retried(endpoint, is_over or threading.Event())
    except _NoModelError as error:
        if STOPPING.match(str(error)):
            raise ServerDrainingError(endpoint.model, str(error)) from error
        raise ServerReplyError(f"the server at {endpoint.url} has no model {endpoint.model!r}: {error}") from error
    except ValueError as error:
        raise ServerReplyError(f"the server at {endpoint.url} does not say what it offers ({error})") from error


async def read_parameters_soon(endpoint: Endpoint) -> Mapping[str, str]:
    """Reads them as `read_parameters`, in a daemon thread of its own.

    Unlike `asyncio.to_thread` it waits for no other call, delays no exit of the process, and works after the main
    thread has ended.
    """
    loop, is_over = asyncio.get_running_loop(), threading.Event()
    done: asyncio.Future[Mapping[str, str]] = loop.create_future()

    def settle(found: Mapping[str, str] | BaseException) -> None:
        if done.done():  # its task was cancelled
            return
        if isinstance(found, BaseException):
            done.set_exception(found)
        else:
            done.set_result(found)

    def read() -> None:
        found: Mapping[str, str] | BaseException
        try:
            found = read_parameters(endpoint, is_over)
        except BaseException as error:  # noqa: BLE001  # the task gets it
            found = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=read, daemon=True, name="penstock-client reader").start()
    try:
        return await done
    finally:
        # The thread tries no more to connect: its result is not awaited.
        is_over.set()


def check_live(endpoint: Endpoint, options: StreamOptions | None) -> None:
    """Raises FilesOnlyError for live audio with these options where the server has an offline model.

    Nothing where it does not say, or answer: the streams' own connection says what is wrong.
    """
    try:
        parameters = _read(replace(endpoint, timeout_s=min(endpoint.timeout_s, limits.OFFER_S)))
    except (_NoModelError, ValueError, OSError):
        return
    if takes_files(parameters) and not is_live_window(options.window if options else None):
        raise FilesOnlyError(parameters.get("model", ""))


def _retried(endpoint: Endpoint, is_over: threading.Event) -> Mapping[str, str]:
    pauses_s = retry_pauses_s(endpoint.options.connect_retry_s)
    while True:
        try:
            return _read(endpoint)
        except OSError as error:
            # A timeout or a certificate would fail another attempt, too.
            pause_s = next(pauses_s, None) if isinstance(error, ConnectionError) else None
            if pause_s is None:
                raise _unreachable(endpoint, error) from error
            if is_over.wait(pause_s):
                raise


def _unreachable(endpoint: Endpoint, error: OSError) -> ServerUnreachableError:
    if isinstance(error, TimeoutError):
        return ServerUnreachableError(endpoint.url, f"no connection for {endpoint.timeout_s:g} s")
    host, _, port = endpoint.url.rpartition(":")
    try:  # gRPC's texts are long, and do not always have the reason
        socket.create_connection((host.strip("[]"), int(port)), min(limits.OFFER_S, endpoint.timeout_s)).close()
    except (ConnectionRefusedError, socket.gaierror) as found:
        return ServerUnreachableError(endpoint.url, (found.strerror or str(found)).lower())
    except OSError:
        pass
    return not_a_server(endpoint, getattr(error, "strerror", None) or str(error))


def not_a_server(endpoint: Endpoint, reason: str) -> ServerUnreachableError:
    """The error where something answers that is no server in the endpoint's protocol."""
    port = "gRPC port (8001 by default)" if endpoint.is_grpc else "HTTP port (8000 by default)"
    tls = "with" if endpoint.is_secure else "without"
    expected = f"protocol {endpoint.protocol!r} needs a server's {port}, {tls} TLS"
    return ServerUnreachableError(endpoint.url, f"{reason}; {expected}")


def _read(endpoint: Endpoint) -> Mapping[str, str]:
    """Reads the parameters of the endpoint's model in one attempt. Raises OSError, _NoModelError and ValueError."""
    return _read_grpc(endpoint) if endpoint.is_grpc else _read_http(endpoint)


def _read_grpc(endpoint: Endpoint) -> Mapping[str, str]:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    from penstock_client.batched.grpc_call import open_channel, reason

    with open_channel(grpc, endpoint) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelConfigRequest(name=endpoint.model)
        metadata = tuple(endpoint.options.headers.items())
        try:
            config = stub.ModelConfig(request, timeout=endpoint.timeout_s, metadata=metadata).config
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and not STOPPING.match(reason(error)):
                raise ConnectionError(reason(error)) from error
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise TimeoutError(reason(error)) from error
            raise _NoModelError(reason(error)) from error
    return {name: value.string_value for name, value in config.parameters.items()}


def _read_http(endpoint: Endpoint) -> Mapping[str, str]:
    from penstock_client.batched.http_call import server_message, tls_context

    tls = tls_context(endpoint)
    if tls is None:
        connection = http.client.HTTPConnection(endpoint.url, timeout=endpoint.timeout_s)
    else:
        connection = http.client.HTTPSConnection(endpoint.url, timeout=endpoint.timeout_s, context=tls)
    try:
        connection.request("GET", f"/v2/models/{quote(endpoint.model)}/config", headers=dict(endpoint.options.headers))
        response = connection.getresponse()
        body = response.read(MAX_REPLY_BYTES + 1)
    except ssl.SSLError as error:  # another attempt meets the same certificate
        raise OSError(str(error)) from error
    except http.client.HTTPException as error:
        is_other = type(error) is http.client.BadStatusLine
        raise ConnectionError("the reply is not HTTP" if is_other else str(error) or type(error).__name__) from error
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        other = NOT_A_SERVER if response.status == http.HTTPStatus.NOT_FOUND else f"HTTP status {response.status}"
        raise _NoModelError(server_message(body) or other)
    if len(body) > MAX_REPLY_BYTES:
        raise ValueError(f"its reply is larger than {MAX_REPLY_BYTES} bytes")
    try:
        parameters = json.loads(body).get("parameters", {})
        return {name: str(value["string_value"]) for name, value in parameters.items()}
    except UNREADABLE as error:
        raise ValueError(f"its reply cannot be read: {error}") from error
