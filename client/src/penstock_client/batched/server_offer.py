"""Reads a server's offer, its model's parameters, over gRPC or HTTP."""

import asyncio
import http.client
import json
import re
import socket
import ssl
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from urllib.parse import quote

from penstock_client import limits
from penstock_client.connection import Endpoint, retry_pauses_s
from penstock_client.protocol import MAX_REPLY_BYTES, NOT_A_SERVER
from penstock_client.replies import STOPPING, UNREADABLE
from penstock_common.errors import FilesOnlyError, ServerDrainingError, ServerReplyError, ServerUnreachableError
from penstock_common.options import StreamOptions, is_live_window
from penstock_common.server_info import ServerInfo, parse_server_info, takes_files

_CERTIFICATE = re.compile("certificate(?! verification context)", re.IGNORECASE)
"""In the reason of a server with TLS. gRPC names the context for one without, too."""


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
    pauses_s, is_over = retry_pauses_s(endpoint.options.connect_retry_s), is_over or threading.Event()
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
    is_over, found = threading.Event(), Future[Mapping[str, str]]()
    found.set_running_or_notify_cancel()  # a task that is cancelled leaves it to the thread

    def read() -> None:
        try:
            found.set_result(read_parameters(endpoint, is_over))
        except BaseException as error:  # noqa: BLE001  # the task gets it
            found.set_exception(error)

    threading.Thread(target=read, daemon=True, name="penstock-client reader").start()
    try:
        return await asyncio.wrap_future(found)
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


def _unreachable(endpoint: Endpoint, error: OSError) -> ServerUnreachableError:
    if isinstance(error, TimeoutError):
        return ServerUnreachableError(endpoint.url, f"no connection for {endpoint.timeout_s:g} s")
    host, _, port = endpoint.url.rpartition(":")
    try:  # gRPC's texts are long, and do not always have the reason
        socket.create_connection((host.strip("[]"), int(port)), min(limits.OFFER_S, endpoint.timeout_s)).close()
    except OSError as found:
        return ServerUnreachableError(endpoint.url, (found.strerror or str(found)).lower())
    reason = getattr(error, "strerror", None) or str(error)
    if _CERTIFICATE.search(reason):
        return ServerUnreachableError(endpoint.url, reason)
    return not_a_server(endpoint, reason)


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
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise ValueError(reason(error)) from error
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
        message = server_message(body)
        if not message and response.status == http.HTTPStatus.NOT_FOUND:
            raise ValueError(NOT_A_SERVER)
        raise _NoModelError(message or f"HTTP status {response.status}")
    if len(body) > MAX_REPLY_BYTES:
        raise ValueError(f"its reply is larger than {MAX_REPLY_BYTES} bytes")
    try:
        parameters = json.loads(body).get("parameters", {})
        return {name: str(value["string_value"]) for name, value in parameters.items()}
    except UNREADABLE as error:
        raise ValueError(f"its reply cannot be read: {error}") from error
