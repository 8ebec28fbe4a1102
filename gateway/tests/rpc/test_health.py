"""grpc.health.v1.Health, which needs no key and reads no message."""

import grpc

from gateway.tests.helpers.running import running
from penstock_gateway.rpc.health import NOT_SERVING, SERVICE, SERVING
from penstock_gateway.security.keys import ApiKey, KeyRing

RING = KeyRing([(ApiKey("test", 4), bytes(32))])


def response(status):
    """HealthCheckResponse: field 1, an enum."""
    return bytes((8, status))


async def test_check_needs_no_key_and_watch_is_not_served(make_gateway, streams):
    async with running(make_gateway(RING)) as served, grpc.aio.insecure_channel(served.grpc_address) as channel:
        check = channel.unary_unary(f"/{SERVICE}/Check")
        assert await check(b"") == response(SERVING)
        assert await check(b"\x0a\x03asr") == response(SERVING)  # a service
        streams.groups = ()
        assert await check(b"") == response(NOT_SERVING)
        assert await channel.unary_stream(f"/{SERVICE}/Watch")(b"").code() is grpc.StatusCode.UNIMPLEMENTED
