"""Input before an application reads it: headers, connections, messages of a WebSocket per second."""

import asyncio
import contextlib
import hashlib
import json
import logging

import httpx2
import pytest
import websockets
from starlette.websockets import WebSocket

from gateway.tests.helpers.realtime_events import closed, receive
from gateway.tests.helpers.running import http_client, running
from penstock_gateway import limits
from penstock_gateway.http.protocol import WebSocketProtocol
from penstock_gateway.security.budget import TokenBucket
from penstock_gateway.security.keys import ANONYMOUS, ApiKey, KeyRing

RING = KeyRing([(ApiKey("test", 4), hashlib.sha256(b"sk-test").digest())])
PATH = "/v1/realtime?intent=transcription"
NONCE = "A" * 22 + "=="
UPGRADE = f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {NONCE}"
LARGE = "x" * limits.MAX_HEAD_BYTES
MANY = "\r\n".join(f"a{i}: b" for i in range(limits.MAX_HEAD_FIELDS))


async def answer(served, text):
    """(status, code) of what the gateway sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.http_port)
    writer.write(text.encode())
    received = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    head, _, body = received.decode().partition("\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


LARGE_HEADERS = {
    "url": f"GET /{LARGE} HTTP/1.1\r\n",
    "field": f"GET / HTTP/1.1\r\nHost: {LARGE}",
    "name": f"GET / HTTP/1.1\r\n{LARGE}",
    "fields": f"GET / HTTP/1.1\r\nHost: a\r\n{MANY}\r\n\r\n",
    "handshake fields": f"GET {PATH} HTTP/1.1\r\nHost: a\r\n{UPGRADE}\r\n{MANY}\r\n\r\n",
    "handshake": f"GET {PATH} HTTP/1.1\r\nHost: a\r\n{UPGRADE}\r\nb: {LARGE}\r\n\r\n",
    "handshake field": f"GET {PATH} HTTP/1.1\r\nHost: a\r\n{UPGRADE}\r\nb: {LARGE[:8100]}\r\n\r\n",
    "handshake line": f"GET {PATH}&{LARGE[:8100]} HTTP/1.1\r\nHost: a\r\n{UPGRADE}\r\n\r\n",
    "trailer": f"POST /v1/models HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n{MANY}\r\n\r\n",
}


@pytest.mark.parametrize("text", LARGE_HEADERS.values(), ids=LARGE_HEADERS)
async def test_a_header_above_a_limit(gateway, text):
    async with running(gateway) as served:
        assert await answer(served, text) == (431, "too_large")
    labels = {"protocol": "http", "reason": "TOO_LARGE"}
    assert gateway.metrics.registry.get_sample_value("penstock_gateway_rejected_total", labels) == 1


@pytest.mark.parametrize("text", ["", "\r\n", "GET / HTTP/1.1\r\nHost: a\r\n", f"GET {PATH} HTTP/1.1\r\n{UPGRADE}"])
async def test_a_header_that_does_not_arrive(gateway, monkeypatch, text):
    monkeypatch.setattr(limits, "UNRESPONSIVE_S", 0.2)
    async with running(gateway) as served:
        assert await answer(served, text) == (408, "stream_idle")


async def test_a_second_header_that_does_not_arrive(gateway, monkeypatch):
    async with running(gateway) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.http_port)
        writer.write(b"GET /health/live HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b'"live"' in await asyncio.wait_for(reader.readuntil(b"}"), 60)
        monkeypatch.setattr(limits, "UNRESPONSIVE_S", 0.2)
        writer.write(b"\r\n")
        assert b"408" in await asyncio.wait_for(reader.read(), 60)
        writer.close()


async def test_the_rest_of_a_body_that_is_not_read(make_gateway, monkeypatch):
    monkeypatch.setattr(limits, "UNRESPONSIVE_S", 0.2)
    async with running(make_gateway(RING)) as served:
        text = "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf"
        assert await answer(served, text) == (401, "invalid_api_key")


async def test_what_is_not_http(gateway):
    async with running(gateway) as served:
        assert await answer(served, "hello") == (400, "field_invalid")


@pytest.mark.parametrize("scheme", ["https", "wss"])
async def test_a_client_of_tls_at_a_port_without_it_is_logged(gateway, caplog, scheme):
    caplog.set_level("INFO")
    async with running(gateway) as served:
        with pytest.raises((httpx2.ConnectError, OSError)):
            if scheme == "wss":
                await websockets.connect(served.ws_url.replace("ws:", "wss:") + PATH)
            async with httpx2.AsyncClient(timeout=60) as client:
                await client.get(served.url.replace("http:", "https:"))
    (reason,) = (record.fields["reason"] for record in caplog.records if record.message == "rejected")
    assert reason.startswith("127.0.0.1 uses TLS on a port without TLS; accepted: http:// and ws://")


async def test_two_authorizations_are_rejected(make_gateway):
    async with http_client(make_gateway(RING)) as client:
        header = ("authorization", "Bearer sk-test")
        assert (await client.get("/v1/models", headers=[header])).status_code == 200
        rejected = await client.get("/v1/models", headers=[header, header])
        assert (rejected.status_code, rejected.json()["error"]["type"]) == (401, "invalid_request_error")
        assert (await client.get(PATH, headers=[header, header])).status_code == 401


async def test_connections_without_a_key_are_limited_and_others_are_not(make_gateway, monkeypatch):
    monkeypatch.setattr(limits, "MAX_UNKNOWN_CONNECTIONS", 2)
    header = {"authorization": "Bearer sk-test"}
    async with running(make_gateway(RING)) as served:
        known = [await websockets.connect(served.ws_url + PATH, additional_headers=header) for _ in range(4)]
        others = [await asyncio.open_connection("127.0.0.1", served.http_port) for _ in range(2)]
        assert await answer(served, "") == (503, "overloaded")
        for _, writer in others:
            writer.close()
            await writer.wait_closed()
        async with httpx2.AsyncClient(base_url=served.url, timeout=60) as client:
            while (await client.get("/health/live", headers={"connection": "close"})).status_code != 200:
                await asyncio.sleep(0.01)
        for socket in known:
            await socket.close()


async def test_all_connections_are_limited(gateway, monkeypatch):
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 2)
    async with running(gateway) as served:
        sockets = [await websockets.connect(served.ws_url + PATH) for _ in range(2)]
        assert await answer(served, "") == (503, "overloaded")
        for socket in sockets:
            await socket.close()


async def test_a_bucket_of_messages():
    bucket = TokenBucket(per_s=10, burst=20, now_s=100.0)
    assert bucket.spend(20, 100.0) <= 0
    assert bucket.spend(5, 100.0) == pytest.approx(0.5)
    assert bucket.spend(0, 101.0) <= 0
    assert bucket.spend(21, 1000.0) == pytest.approx(0.1)


@pytest.mark.parametrize("kind", ["ping", "message"])
async def test_messages_and_pings_per_second(gateway, monkeypatch, kind):
    monkeypatch.setattr(limits, "MESSAGES_PER_S", 20.0)
    monkeypatch.setattr(limits, "MAX_MESSAGE_BURST", 5.0)
    async with running(gateway) as served, websockets.connect(served.ws_url + PATH) as socket:
        await socket.recv()
        start_s = asyncio.get_running_loop().time()
        for _ in range(16):
            if kind == "ping":
                await asyncio.wait_for(await socket.ping(), 60)
            else:
                await socket.send('{"type": "session.update", "session": {}}')
                await asyncio.wait_for(socket.recv(), 60)
        assert asyncio.get_running_loop().time() - start_s > 0.4


async def test_a_file_at_full_speed_loses_no_message(gateway, streams):
    async with running(gateway) as served, websockets.connect(served.ws_url + PATH) as socket:
        for _ in range(2100):
            await socket.send(
                '{"type": "input_audio_buffer.append", "audio": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}'
            )
        await socket.send('{"type": "input_audio_buffer.commit"}')
        await receive(socket, "conversation.item.input_audio_transcription.completed")
    assert 0 <= 2100 * 10 - sum(map(len, streams.opened[0].pushed)) <= 80  # the resampler holds 5 ms back


async def test_errors_in_a_row_close_the_connection_and_others_do_not(gateway):
    async with running(gateway) as served, websockets.connect(served.ws_url + PATH) as socket:
        for _ in range(3):
            for _ in range(limits.MAX_ERRORS_IN_A_ROW - 1):
                await socket.send("{}")
            await socket.send('{"type": "session.update", "session": {}}')
        for _ in range(limits.MAX_ERRORS_IN_A_ROW):
            await socket.send("{}")
        assert (await closed(socket))[0] == 1008


BROKEN = {
    "text": (b"\x81\x82", b"\xff\xfe", 1007),
    "surrogate": (b"\x81\x83", b"\xed\xa0\x80", 1007),
    "cut text": (b"\x81\x82", b"\xe2\x82", 1007),
    "reason of a close": (b"\x88\x83", b"\x03\xe8\xff", 1007),
    "code of a close": (b"\x88\x82", b"\x03\xe7", 1002),
    "opcode": (b"\x83\x80", b"", 1002),
    "reserved bits": (b"\xc1\x80", b"", 1002),
    "continuation": (b"\x80\x80", b"", 1002),
    "half a ping": (b"\x09\x80", b"", 1002),
    "length": (b"\x81\xff" + (2**63 - 1).to_bytes(8, "big"), b"", 1009),
}


async def test_a_large_event_is_audio_and_no_message_is_larger_than_the_limit(gateway):
    large = "x" * limits.MAX_EVENT_BYTES
    async with running(gateway) as served, websockets.connect(served.ws_url + PATH) as socket:
        await socket.send(f'{{"type": "session.update", "session": {{"instructions": "\\ud83d\\ude00{large}"}}}}')
        assert (await receive(socket, "error"))["error"]["code"] == "too_large"
        await socket.send("x" * (limits.MAX_WEBSOCKET_BYTES + 1))
        code, (event,) = await closed(socket)
    assert code == 1009 and "accepted: 4,259,840" in event["error"]["message"]


async def test_a_large_message_is_ascii(gateway):
    async with running(gateway) as served, websockets.connect(served.ws_url + PATH) as socket:
        await socket.send("x" * limits.MAX_EVENT_BYTES + "\U0001f600")
        code, events = await closed(socket)
    assert code == 1009 and "is not ASCII" in events[-1]["error"]["message"]


@pytest.mark.parametrize("parts", [1, 40])
async def test_a_large_message_that_does_not_arrive(gateway, monkeypatch, parts):
    monkeypatch.setattr(limits, "MAX_SILENT_S", 0.01)
    size = (limits.MAX_EVENT_BYTES + 1000) // parts + 1
    length = bytes([0x80 | 127]) + size.to_bytes(8, "big") + bytes(4)  # the mask is 0
    async with running(gateway) as served, websockets.connect(served.ws_url + PATH) as socket:
        for part in range(parts):
            missing = 1 if parts == 1 else 0  # a frame that is not complete, or frames without the last one
            socket.transport.write((b"\x00" if part else b"\x01") + length + b"x" * (size - missing))
        code, events = await closed(socket)
    assert (code, events[-1]["error"]["code"]) == (4408, "stream_idle")


async def test_the_time_of_a_large_message_ends_with_it(gateway, monkeypatch):
    protocols, watch = [], WebSocketProtocol._watch_message

    def watched(protocol):
        watch(protocol)
        protocols.append((protocol, protocol._deadline))

    monkeypatch.setattr(WebSocketProtocol, "_watch_message", watched)
    async with running(gateway) as served, websockets.connect(served.ws_url + PATH) as socket:
        await socket.send("x" * (2 * limits.MAX_EVENT_BYTES))
        await receive(socket, "error")
        assert any(timer is not None for _, timer in protocols)
        assert protocols[-1][0]._deadline is None


@pytest.mark.parametrize(("head", "data", "code"), BROKEN.values(), ids=BROKEN)
async def test_a_broken_websocket_is_one_line_of_its_client(gateway, caplog, head, data, code):
    caplog.set_level("INFO", "penstock_gateway")
    async with running(gateway) as served, websockets.connect(served.ws_url + PATH) as socket:
        await socket.recv()
        socket.transport.write((head + bytes(4) + data) * 3)  # the mask is 0
        closed_with, events = await closed(socket)
    assert closed_with == code and all(event["type"] == "error" for event in events)
    ((name, level, text),) = caplog.record_tuples
    assert (name, level, text) == ("penstock_gateway.access", logging.INFO, "rejected")
    labels = {"protocol": "realtime", "reason": "TOO_LARGE" if code == 1009 else "FIELD_INVALID"}
    assert gateway.metrics.registry.get_sample_value("penstock_gateway_rejected_total", labels) == 1


async def test_a_websocket_that_is_broken_before_it_is_accepted(gateway, caplog, monkeypatch):
    accepts = asyncio.Event()

    async def accept(socket, *_):
        await accepts.wait()

    monkeypatch.setattr(WebSocket, "accept", accept)
    caplog.set_level("INFO", "penstock_gateway")
    for frame in (b"\x81\x81" + bytes(4) + b"\xff", b"\x83\x80" + bytes(4)):
        accepts.clear()
        async with running(gateway) as served:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.http_port)
            writer.write(f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n{UPGRADE}\r\n\r\n".encode())
            while not gateway.connections.open[ANONYMOUS.name]:
                await asyncio.sleep(0)
            writer.write(frame)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 60) == b""
            accepts.set()
            writer.close()
    assert caplog.messages.count("rejected") == 2
    assert not [each for each in caplog.records if each.exc_info or each.name == "asyncio"]
