"""The call that carries a link's requests: over gRPC a stream of messages, over HTTP one POST at a time.

The library of a protocol is imported when it is used.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from penstock_client.connection import Endpoint

if TYPE_CHECKING:
    from penstock_client.batched.grpc_call import GrpcCall
    from penstock_client.batched.http_call import HttpCall

BatchCall: TypeAlias = "GrpcCall | HttpCall"
"""Carries requests and their replies, in order. Made in a running event loop."""

Values = Callable[[str], list[Any] | None]
"""Returns an output's values by its name, None for a missing one."""


class RawReply(NamedTuple):
    """The reply to one request."""

    values: Values
    error: str = ""
    """The server's message where it has rejected the request as a whole."""


class CallLostError(Exception):
    """The call has ended; the text says why."""


class UnreadableReplyError(Exception):
    """The server's reply is too large or no reply of Triton; the text says why."""


def check_certificates(endpoint: Endpoint) -> None:
    """Raises ValueError for certificate files that cannot be used."""
    if endpoint.is_grpc and endpoint.is_secure:
        from penstock_client.batched.grpc_call import channel_credentials

        channel_credentials(endpoint.options)
    elif endpoint.is_secure:
        from penstock_client.batched.http_call import tls_context

        tls_context(endpoint)


def open_call(endpoint: Endpoint, beside: "BatchCall | None" = None) -> BatchCall:
    """A call of the endpoint's model, over gRPC on the channel of the call `beside`.

    Raises ServerUnreachableError in a process that was forked from one that uses gRPC.
    """
    if not endpoint.is_grpc:
        from penstock_client.batched.http_call import HttpCall

        return HttpCall(endpoint)
    from penstock_client.batched.grpc_call import Channel, GrpcCall

    return GrpcCall(endpoint, beside.channel if isinstance(beside, GrpcCall) else Channel(endpoint))
