"""Limits of a request's body: its size, and the time until its next part."""

import asyncio

from starlette.requests import Request
from starlette.types import Message

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security import limits


def limited(request: Request, max_bytes: int, param: str) -> Request:
    """The same request; reading its body raises GatewayError for a larger one, and for one that does not go on.

    A larger one is rejected at once if its length is stated. `param`: the field that the error names.
    """
    too_large = GatewayError(ErrorCode.TOO_LARGE, f"the request has more than {max_bytes:,} bytes", param)
    stated = request.headers.get("content-length", "0")
    if stated.isdecimal() and int(stated) > max_bytes:
        raise too_large
    received, is_whole = 0, False

    async def receive() -> Message:
        nonlocal received, is_whole
        try:
            message = await asyncio.wait_for(request.receive(), None if is_whole else limits.MAX_SILENT_S)
        except asyncio.TimeoutError:
            silence = f"no part of the request arrived for {limits.MAX_SILENT_S:g} s"
            raise GatewayError(ErrorCode.STREAM_IDLE, silence) from None
        received += len(message.get("body", b""))
        is_whole = not message.get("more_body", False)
        if received > max_bytes:
            raise too_large
        return message

    return Request(request.scope, receive)
