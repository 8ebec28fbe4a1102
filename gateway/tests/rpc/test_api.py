"""Common rules of all services of the gRPC port: no message is read before the key is right."""

import asyncio
import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from gateway.tests.helpers.running import running
from penstock_gateway import app
from penstock_gateway.errors import KSERVE_NOT_SERVED
from penstock_gateway.riva.service import SERVICE
from penstock_gateway.rpc.api import OPTIONS
from penstock_gateway.security.keys import ApiKey, KeyRing
from trials.server.gateway import fresh_gateway

Code = grpc.StatusCode
KEY = ("authorization", "Bearer sk-test")
DIGEST = hashlib.sha256(b"sk-test")
RING = KeyRing([(ApiKey("test", 4), DIGEST.digest())])
LOST_STATUS = "Internal error from Core"
"""Errors of gRPC's client, where a write fails before the server's status arrives: another call gets it."""
CALLS, MESSAGE_BYTES = 4, 40 << 20


def peak_bytes(process_id):
    """The most memory that a process has had."""
    (line,) = [line for line in Path(f"/proc/{process_id}/status").read_text().splitlines() if "VmHWM" in line]
    return int(line.split()[1]) << 10


@pytest.mark.parametrize(
    ("compression", "code"),
    [(grpc.Compression.NoCompression, Code.UNAUTHENTICATED), (grpc.Compression.Gzip, Code.UNIMPLEMENTED)],
)
def test_large_calls_without_a_key_take_no_memory(tmp_path, replica, compression, code):
    message, keys = bytes(MESSAGE_BYTES), tmp_path / "keys"
    keys.write_text(f"test {DIGEST.hexdigest()} 4\n")
    with fresh_gateway(replica, "--keys", str(keys)) as served:
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]

        def call(method):
            with grpc.insecure_channel(served.grpc, options) as channel:
                with pytest.raises(grpc.RpcError) as error:
                    channel.unary_unary(f"/{SERVICE}/{method}")(message, compression=compression)
                return error.value.code()

        before = peak_bytes(served.process_id)
        with ThreadPoolExecutor(4) as executor:
            assert set(executor.map(call, ["Recognize", "GetRivaSpeechRecognitionConfig"] * (CALLS // 2))) == {code}
        assert peak_bytes(served.process_id) - before < MESSAGE_BYTES


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream", "stream_unary", "stream_stream"])
@pytest.mark.parametrize("metadata", [(), (KEY, KEY), (("authorization", "Bearer sk-other"),)])
async def test_a_call_without_a_key_or_with_two_is_rejected(make_gateway, kind, metadata):
    gateway = make_gateway(RING)
    calls = 0
    async with running(gateway) as served, grpc.aio.insecure_channel(served.grpc_address) as channel:
        for method in (f"/{SERVICE}/StreamingRecognize", "/other.Service/Method"):
            details = LOST_STATUS
            while details == LOST_STATUS:
                request = b"" if kind.startswith("unary") else iter([b""])
                call = getattr(channel, kind)(method)(request, metadata=metadata)
                code, details = await call.code(), await call.details()
                calls += 1
            assert code is Code.UNAUTHENTICATED
    registry = gateway.metrics.registry
    for protocol in ("riva", "grpc"):
        labels = {"protocol": protocol, "reason": "INVALID_API_KEY"}
        assert 1 <= registry.get_sample_value("penstock_gateway_rejected_total", labels) < calls


async def test_an_unknown_method_is_unimplemented_and_health_needs_no_key(make_gateway):
    async with running(make_gateway(RING)) as served, grpc.aio.insecure_channel(served.grpc_address) as channel:
        for method, metadata in (("/other.Service/Method", (KEY,)), ("/grpc.health.v1.Health/Method", ())):
            assert await channel.unary_unary(method)(b"", metadata=metadata).code() is Code.UNIMPLEMENTED
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"", metadata=(KEY,))
        assert (await call.code(), await call.details()) == (Code.UNIMPLEMENTED, KSERVE_NOT_SERVED)


@pytest.mark.parametrize(
    ("limit", "sent"),
    [
        ("grpc.server_handshake_timeout_ms", b""),
        ("grpc.max_connection_idle_ms", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))),
    ],
)
async def test_a_connection_without_calls_is_closed(make_gateway, monkeypatch, limit, sent):
    assert limit in dict(OPTIONS)
    monkeypatch.setattr(app, "OPTIONS", tuple({**dict(OPTIONS), limit: 100}.items()))
    async with running(make_gateway(RING)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.grpc_port)
        writer.write(sent)
        await asyncio.wait_for(reader.read(), 60)
        writer.close()


async def test_pings_are_all_answered(make_gateway):
    """gRPC's own limit of them would take minutes for these."""
    settings, ping, count = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)), bytes((0, 0, 8, 6)) + bytes(13), 20_000
    async with running(make_gateway(RING)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.grpc_port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + ping * count)
        while count:
            head = await asyncio.wait_for(reader.readexactly(9), 60)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            assert head[3] != 7, "GOAWAY"
            count -= head[3:5] == bytes((6, 1))
        writer.close()
