"""The call that carries a link's requests: over gRPC a stream of messages, over HTTP one POST at a time.

The library of a protocol is imported when it is used.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from penstock_client.batched.rows import Row
from penstock_client.connection import Endpoint

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


class BatchCall(Protocol):
    """Carries requests and their replies, in order. Made in a running event loop."""

    max_unanswered: int
    """Requests on their way; rows beyond them wait, and share a later request."""

    async def write(self, client_id: str, rows: Sequence[Row]) -> None:
        """Sends a request. Raises nothing where the call is lost: `replies` does."""

    def replies(self) -> AsyncIterator[RawReply]:
        """The replies as they come. Raises CallLostError and UnreadableReplyError."""

    def cancel(self) -> None:
        """Ends the call without waiting."""

    async def close(self) -> None:
        """Ends the call and its connection."""


def check_certificates(endpoint: Endpoint) -> None:
    """Raises ValueError for certificate files that cannot be used."""
    if endpoint.is_grpc and endpoint.is_secure:
        from penstock_client.batched.grpc_call import channel_credentials

        channel_credentials(endpoint.options)
    elif endpoint.is_secure:
        from penstock_client.batched.http_call import tls_context

        tls_context(endpoint)


def open_call(endpoint: Endpoint, beside: BatchCall | None = None) -> BatchCall:
    """A call of the endpoint's model, over gRPC on the channel of the call `beside`.

    Raises ServerUnreachableError in a process that was forked from one that uses gRPC.
    """
    if not endpoint.is_grpc:
        from penstock_client.batched.http_call import HttpCall

        return HttpCall(endpoint)
    from penstock_client.batched.grpc_call import Channel, GrpcCall

    return GrpcCall(endpoint, beside.channel if isinstance(beside, GrpcCall) else Channel(endpoint))
