"""Reads the parameters of a server's model over gRPC or HTTP, on a separate connection."""

import http.client
import json
import ssl
import time
from collections.abc import Callable, Mapping
from urllib.parse import quote

from penstock_client.connection import Endpoint, retry_pauses_s
from penstock_client.errors import ServerReplyError, ServerUnreachableError
from penstock_client.protocol import MAX_REPLY_BYTES
from penstock_client.replies import UNREADABLE
from penstock_client.server_info import ServerInfo, parse_server_info
from penstock_client.transport.probe import explain


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


def read_parameters(endpoint: Endpoint) -> Mapping[str, str]:
    """Reads the parameters of the endpoint's model, as `read_server_info` without knowing what they mean."""
    try:
        return _retried(_read_grpc if endpoint.is_grpc else _read_http, endpoint)
    except _NoModelError as error:
        raise ServerReplyError(f"the server at {endpoint.url} has no model {endpoint.model!r}: {error}") from error
    except ValueError as error:
        raise ServerReplyError(f"the server at {endpoint.url} does not say what it offers ({error})") from error


def try_parameters(endpoint: Endpoint) -> Mapping[str, str] | None:
    """Reads the parameters of the endpoint's model in one attempt: {} from another kind of server, None from none."""
    try:
        return (_read_grpc if endpoint.is_grpc else _read_http)(endpoint)
    except (_NoModelError, ValueError):
        return {}
    except OSError:
        return None


def _retried(read: Callable[[Endpoint], Mapping[str, str]], endpoint: Endpoint) -> Mapping[str, str]:
    for pause_s in retry_pauses_s(endpoint.options.connect_retry_s):
        try:
            return read(endpoint)
        except ConnectionError:
            time.sleep(pause_s)
        except OSError as error:  # of a timeout or a certificate, which another attempt would meet too
            raise _unreachable(endpoint, error) from error
    try:
        return read(endpoint)
    except OSError as error:
        raise _unreachable(endpoint, error) from error


def _unreachable(endpoint: Endpoint, error: OSError) -> ServerUnreachableError:
    reason = getattr(error, "strerror", None) or str(error)
    return ServerUnreachableError(endpoint.url, explain(endpoint, reason))


def _read_grpc(endpoint: Endpoint) -> Mapping[str, str]:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    from penstock_client.transport.grpc_wire import call_metadata, open_channel, reason

    with open_channel(grpc, endpoint) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelConfigRequest(name=endpoint.model)
        metadata = call_metadata(endpoint.options)
        try:
            config = stub.ModelConfig(request, timeout=endpoint.timeout_s, metadata=metadata).config
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise ConnectionError(reason(error)) from error
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise TimeoutError(reason(error)) from error
            raise _NoModelError(reason(error)) from error
    return {name: value.string_value for name, value in config.parameters.items()}


def _read_http(endpoint: Endpoint) -> Mapping[str, str]:
    from penstock_client.transport.http_wire import tls_context

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
        raise ConnectionError(str(error) or type(error).__name__) from error
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        raise _NoModelError(f"HTTP status {response.status}")
    if len(body) > MAX_REPLY_BYTES:
        raise ValueError(f"its reply is larger than {MAX_REPLY_BYTES} bytes")
    try:
        parameters = json.loads(body).get("parameters", {})
        return {name: str(value["string_value"]) for name, value in parameters.items()}
    except UNREADABLE as error:
        raise ValueError(f"its reply cannot be read: {error}") from error
