"""grpc.health.v1.Health, which needs no key and reads no message."""

import grpc
import pytest

from gateway.tests.helpers.running import running
from penstock_gateway import limits
from penstock_gateway.rpc import health as grpc_health
from penstock_gateway.rpc.health import NOT_SERVING, SERVICE, SERVING
from penstock_gateway.security.keys import ApiKey, KeyRing

pytestmark = pytest.mark.anyio
RING = KeyRing([(ApiKey("test", 4), bytes(32))])


@pytest.fixture
async def channel(make_gateway, monkeypatch):
    """The gateway has keys."""
    monkeypatch.setattr(limits, "TICK_S", 0.01)
    async with running(make_gateway(RING)) as served, grpc.aio.insecure_channel(served.grpc_address) as channel:
        yield channel


def response(status):
    """HealthCheckResponse: field 1, an enum."""
    return bytes((8, status))


async def test_check(channel, streams):
    check = channel.unary_unary(f"/{SERVICE}/Check")
    assert await check(b"") == response(SERVING)
    assert await check(b"\x0a\x03asr") == response(SERVING)  # a service
    streams.groups = ()
    assert await check(b"") == response(NOT_SERVING)


async def test_watch_reports_each_change(channel, streams):
    groups, watch = streams.groups, channel.unary_stream(f"/{SERVICE}/Watch")(b"")
    for now, status in ((groups, SERVING), ((), NOT_SERVING), (groups, SERVING)):
        streams.groups = now
        assert await watch.read() == response(status)
    watch.cancel()


@pytest.mark.parametrize("limit", ["MAX_WATCHES", "MAX_WATCHES_OF_ADDRESS"])
async def test_watches_are_limited(channel, monkeypatch, limit):
    monkeypatch.setattr(grpc_health, limit, 3)
    watch = channel.unary_stream(f"/{SERVICE}/Watch")
    watches = [watch(b"") for _ in range(3)]
    for each in watches:
        await each.read()
    assert await watch(b"").code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for each in watches:
        each.cancel()
