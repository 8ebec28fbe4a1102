"""The table of limits: each rejection in each protocol's own form. Times of open streams: stream/test_watch.py."""

import asyncio
import hashlib
import json
import logging

import grpc
import httpx2
import numpy as np
import pytest
import websockets

from client.tests.helpers.sound_files import sound_file
from gateway.tests.helpers.fake_streams import speech
from gateway.tests.helpers.riva_client import audio as audio_message
from gateway.tests.helpers.riva_client import client, configuration
from gateway.tests.helpers.running import running
from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.riva.proto import riva_asr_pb2 as riva
from penstock_gateway.security import limits
from penstock_gateway.security.keys import ApiKey, KeyRing
from penstock_gateway.security.limits import MAX_FRAME_BYTES, WriteLimit

pytestmark = pytest.mark.anyio
KEY = "sk-test"
RING = KeyRing([(ApiKey("test", 4), hashlib.sha256(KEY.encode()).digest())])
SERVICE = "/nvidia.riva.asr.RivaSpeechRecognition/"


def recording():
    return sound_file(speech(0.3))


async def http(served, key=KEY, model="", content=None):
    """(status, code, Retry-After) of a transcription."""
    async with httpx2.AsyncClient(base_url=served.url, timeout=60) as client:
        response = await client.post(
            "/v1/audio/transcriptions",
            files={"file": content or recording()},
            data={"model": model},
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )
    error = response.json().get("error", {})
    return response.status_code, error.get("code"), response.headers.get("retry-after")


async def chunked(served, size):
    """(status, code) of a form whose length is not stated."""

    async def form():
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(size >> 16):
            yield bytes(1 << 16)

    headers = {"content-type": "multipart/form-data; boundary=x"}
    async with httpx2.AsyncClient(base_url=served.url, timeout=60) as client:
        response = await client.post("/v1/audio/transcriptions", content=form(), headers=headers)
    return response.status_code, response.json()["error"]["code"]


async def realtime(served, key=KEY, model="", audio="AAAA"):
    """(status of the handshake or code of the close, code of the last error)."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with websockets.connect(f"{served.ws_url}/v1/realtime", additional_headers=headers) as socket:
            session = {"type": "transcription", "audio": {"input": {"transcription": {"model": model}}}}
            if model:
                await socket.send(json.dumps({"type": "session.update", "session": session}))
            await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
            code = None
            try:
                while True:
                    event = json.loads(await asyncio.wait_for(socket.recv(), 60))
                    if event["type"] == "error":
                        code = event["error"]["code"]
                        if event["error"]["type"] == "invalid_request_error" and code != "too_large":
                            return None, code  # the connection goes on
            except websockets.ConnectionClosed as closed:
                return closed.rcvd.code, code
    except websockets.InvalidStatus as rejected:
        return rejected.response.status_code, json.loads(rejected.response.body)["error"]["code"]


async def riva_call(served, key=KEY, model="", content=None):
    """(status, trailing metadata) of Recognize."""
    metadata = [("authorization", f"Bearer {key}")] if key else []
    config = riva.RecognitionConfig(model=model, language_code="en-US")
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(served.grpc_address, options=options) as channel:
        recognize = channel.unary_unary(
            f"{SERVICE}Recognize", riva.RecognizeRequest.SerializeToString, riva.RecognizeResponse.FromString
        )
        try:
            await recognize(riva.RecognizeRequest(config=config, audio=content or recording()), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return error.code().name, dict(error.trailing_metadata() or ())
        return "OK", {}


async def riva_stream(gateway, content):
    """(status, details) of StreamingRecognize."""
    messages = [configuration(), *(audio_message(content[i : i + 250_000]) for i in range(0, len(content), 250_000))]
    async with client(gateway) as riva_client:
        try:
            await riva_client.send_all(messages, [("authorization", f"Bearer {KEY}")])
        except grpc.RpcError as error:
            return error.code().name, error.details()
    return "OK", ""


@pytest.mark.parametrize("key", [None, "sk-other", "ek_AAAA"])
async def test_a_missing_or_wrong_key(make_gateway, streams, key):
    async with running(make_gateway(RING)) as served:
        assert (await http(served, key))[:2] == (401, "invalid_api_key")
        assert await realtime(served, key) == (401, "invalid_api_key")
        assert (await riva_call(served, key))[0] == "UNAUTHENTICATED"
    assert not streams.opened


async def test_the_right_key(make_gateway, streams):
    async with running(make_gateway(RING)) as served:
        assert (await http(served))[0] == 200
        assert (await riva_call(served))[0] == "OK"
    assert {stream.key.name for stream in streams.opened} == {"test"}


async def test_all_streams_are_open(gateway, streams):
    streams.max_streams = 0
    async with running(gateway) as served:
        assert await http(served) == (429, "streams_exhausted", "2")
        assert await realtime(served) == (429, "streams_exhausted")
        status, trailing = await riva_call(served)
        assert (status, trailing["retry-after"]) == ("RESOURCE_EXHAUSTED", "2")


async def test_no_replica_answers_at_a_start(gateway, streams):
    streams.open_error = GatewayError(ErrorCode.NO_REPLICA, "no replica answers", retry_after_s=2.0)
    async with running(gateway) as served:
        assert await http(served) == (503, "no_replica", "2")
        assert await realtime(served) == (1013, "no_replica")
        assert (await riva_call(served))[0] == "UNAVAILABLE"


async def test_no_replica_has_answered_before(gateway, streams, monkeypatch):
    def group(model):
        raise GatewayError(ErrorCode.NO_REPLICA, "no replica answers", retry_after_s=2.0)

    monkeypatch.setattr(streams, "group", group)
    async with running(gateway) as served:
        assert await http(served) == (503, "no_replica", "2")
        assert await realtime(served) == (503, "no_replica")
        assert (await riva_call(served))[0] == "UNAVAILABLE"


async def test_wrong_fields_and_audio(gateway):
    async with running(gateway) as served:
        assert (await http(served, model="other"))[:2] == (404, "model_not_found")
        assert (await realtime(served, model="other"))[1] == "model_not_found"
        assert (await riva_call(served, model="other"))[0] == "NOT_FOUND"
        assert (await http(served, content=b"fLaC no audio"))[:2] == (400, "audio_invalid")
        assert (await realtime(served, audio="***"))[1] == "audio_invalid"
        assert (await riva_call(served, content=b"RIFF\0\0\0\0WAVEdata\0\0\0\0"))[0] == "INVALID_ARGUMENT"


async def test_messages_that_are_too_large(make_gateway, streams):
    limit = 10_000_000
    async with running(make_gateway(max_upload_mb=10)) as served:
        assert (await http(served, content=b"RIFF" + bytes(limit)))[:2] == (413, "too_large")
        assert (await http(served, content=bytes(limit + (2 << 20))))[:2] == (413, "too_large")
        assert await chunked(served, limit + (2 << 20)) == (413, "too_large")
        assert (await realtime(served, audio="A" * MAX_FRAME_BYTES))[0] == 1009
        assert (await riva_call(served, content=bytes(limit + (2 << 20))))[0] == "RESOURCE_EXHAUSTED"
    assert not streams.opened


async def test_larger_uploads_than_once_are_taken(make_gateway, streams):
    """26 MB: 200 MB is the default."""
    async with running(make_gateway()) as served:
        assert (await http(served, content=sound_file(np.zeros(13_000_000, np.float32))))[0] == 200
    assert streams.opened[0].pushed


async def test_uploads_wait_for_room_and_give_it_back(make_gateway, monkeypatch):
    """A key has half of 500 MB, from the first byte of a body to the end of its reply."""
    monkeypatch.setattr(limits, "MAX_WAIT_S", 0.2)
    gateway = make_gateway(RING)
    async with running(gateway) as served:
        _, first = await unfinished_upload(served, 200_000_000)
        while not gateway.recordings.taken_of("test"):
            await asyncio.sleep(0.01)
        reader, second = await unfinished_upload(served, 200_000_000)
        assert b" 429 " in await asyncio.wait_for(reader.readline(), 60)
        assert b"no room for a recording within" in await reader.read()
        assert (await http(served))[0] == 200  # a small one
        first.close()
        second.close()
        while gateway.recordings.taken_of("test"):
            await asyncio.sleep(0.01)


async def test_compressed_audio_of_streams_takes_room_as_it_arrives(make_gateway):
    gateway = make_gateway(RING, max_upload_mb=10)
    flac = sound_file(np.random.default_rng(1).uniform(-1, 1, 4_000_000).astype(np.float32), form="FLAC")
    assert 7_500_000 < len(flac) < 10_000_000
    assert await riva_stream(gateway, flac) == ("OK", "")
    assert await riva_stream(gateway, flac + bytes(10_000_001 - len(flac))) == (
        "RESOURCE_EXHAUSTED",
        "TOO_LARGE: the compressed audio has 10,000,001 bytes or more; accepted: up to 10 MB (--max-upload-mb)",
    )
    async with gateway.recordings.taken("test", 249_000_000):
        full = ("RESOURCE_EXHAUSTED", "STREAMS_EXHAUSTED: there is no room for a recording left")
        assert await riva_stream(gateway, flac) == full
    assert not gateway.recordings.taken_of("test")


async def test_a_write_that_a_client_does_not_take():
    limit = WriteLimit(0.02)
    await limit.write(asyncio.sleep(0))
    with pytest.raises(GatewayError) as caught:
        await limit.write(asyncio.Event().wait())
    assert caught.value.code is ErrorCode.RESULTS_UNREAD


async def test_a_write_that_is_cancelled_by_another_task_is_cancelled():
    writing = asyncio.create_task(WriteLimit(60).write(asyncio.Event().wait()))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing


async def unfinished_upload(served, size=1000):
    """(reader, writer) of a request for a transcription whose body does not end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.http_port)
    head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n"
    body = f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {size}\r\n\r\n--x\r\n"
    writer.write((head + body).encode())
    return reader, writer


async def test_uploads_count_against_their_key_from_the_first_byte(make_gateway):
    gateway = make_gateway(RING)
    async with running(gateway) as served:
        uploads = [await unfinished_upload(served) for _ in range(8)]
        while gateway.uploads.open(RING.named("test")) < 8:
            await asyncio.sleep(0.01)
        reader, writer = await unfinished_upload(served)
        head, _, body = (await asyncio.wait_for(reader.read(600), 60)).decode().partition("\r\n\r\n")
        assert head.startswith("HTTP/1.1 429 ")
        assert "retry-after: 2" in head.lower()
        assert "all 8 uploads of the API key 'test' are open" in body
        for _, other in [*uploads, (reader, writer)]:
            other.close()
        while gateway.uploads.open(RING.named("test")):
            await asyncio.sleep(0.01)
        assert (await http(served))[0] == 200


async def test_an_upload_has_a_total_time(make_gateway, monkeypatch):
    monkeypatch.setattr(limits, "MAX_UPLOAD_S", 0.2)
    async with running(make_gateway(RING)) as served:
        reader, writer = await unfinished_upload(served)
        reading = asyncio.create_task(reader.readline())
        while not reading.done():
            writer.write(b"x")
            await asyncio.sleep(0.02)
        assert b" 408 " in await reading
        writer.close()


async def test_connections_and_calls_of_a_key_are_limited(make_gateway):
    gateway = make_gateway(RING)
    headers = {"Authorization": f"Bearer {KEY}"}
    async with running(gateway) as served:
        sockets = [
            await websockets.connect(f"{served.ws_url}/v1/realtime", additional_headers=headers) for _ in range(24)
        ]
        assert await realtime(served) == (429, "streams_exhausted")
        assert await http(served) == (429, "streams_exhausted", "2")
        assert (await riva_call(served))[0] == "RESOURCE_EXHAUSTED"
        for socket in sockets:
            await socket.close()
        while gateway.connections.open(RING.named("test")):
            await asyncio.sleep(0.01)
        assert (await riva_call(served))[0] == "OK"
        assert (await http(served))[0] == 200
        while gateway.connections.open(RING.named("test")):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("code", ErrorCode)
async def test_every_code_has_a_status_in_each_protocol(code):
    assert 400 <= code.status.http < 600
    assert code.status.websocket in (1008, 1009, 1011, 1013) or 4000 <= code.status.websocket < 5000
    assert grpc.StatusCode[code.status.grpc]


async def test_rejections_are_counted_and_logged_without_the_key(make_gateway, caplog):
    caplog.set_level(logging.INFO)
    gateway = make_gateway(RING)
    async with running(gateway) as served:
        await http(served, "sk-secret")
        await realtime(served, "sk-secret")
        await riva_call(served, "sk-secret")
    for protocol in ("openai", "realtime", "riva"):
        labels = {"protocol": protocol, "reason": "INVALID_API_KEY"}
        assert gateway.metrics.registry.get_sample_value("penstock_gateway_rejected_total", labels) == 1, protocol
    lines = [record for record in caplog.records if record.name == "penstock_gateway.access"]
    assert len(lines) == 3
    assert "sk-secret" not in " ".join(str(vars(record)) for record in caplog.records)
