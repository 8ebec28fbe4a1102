"""Limits of uploads. Those of all protocols: contract/test_limits.py. Times of open streams: stream/test_watch.py."""

import asyncio
import hashlib

import grpc
import httpx2
import numpy as np
import pytest

from client.tests.helpers.event_loop import until
from client.tests.helpers.sound_files import sound_file
from gateway.tests.helpers.fake_streams import speech
from gateway.tests.helpers.openai_calls import unfinished_upload
from gateway.tests.helpers.riva_client import audio as audio_message
from gateway.tests.helpers.riva_client import client, configuration
from gateway.tests.helpers.running import running
from penstock_gateway import limits
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.riva.service import SERVICE
from penstock_gateway.security.budget import WriteLimit
from penstock_gateway.security.keys import ApiKey, KeyRing

KEY = "sk-test"
RING = KeyRing([(ApiKey("test", 4), hashlib.sha256(KEY.encode()).digest())])


def recording():
    return sound_file(speech(0.3))


FILE_PART = b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n'


async def http(served, content=None):
    """(status, code) of a transcription."""
    async with httpx2.AsyncClient(base_url=served.url, timeout=60) as client:
        response = await client.post(
            "/v1/audio/transcriptions",
            files={"file": content or recording()},
            headers={"Authorization": f"Bearer {KEY}"},
        )
    return response.status_code, response.json().get("error", {}).get("code")


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


async def riva_stream(gateway, content):
    """(status, details) of StreamingRecognize."""
    messages = [configuration(), *(audio_message(content[i : i + 250_000]) for i in range(0, len(content), 250_000))]
    async with client(gateway) as riva_client:
        try:
            await riva_client.send_all(messages, [("authorization", f"Bearer {KEY}")])
        except grpc.RpcError as error:
            return error.code().name, error.details()
    return "OK", ""


async def test_uploads_that_are_too_large(make_gateway, streams):
    limit = 10_000_000
    async with running(make_gateway(max_upload_mb=10)) as served:
        assert (await http(served, content=b"RIFF" + bytes(limit))) == (413, "too_large")
        assert (await http(served, content=bytes(limit + (2 << 20)))) == (413, "too_large")
        assert await chunked(served, limit + (2 << 20)) == (413, "too_large")
    assert not streams.opened


async def test_larger_uploads_than_once_are_taken(make_gateway, streams):
    """26 MB: 200 MB is the default."""
    async with running(make_gateway()) as served:
        assert (await http(served, content=sound_file(np.zeros(13_000_000, np.float32))))[0] == 200
    assert streams.opened[0].pushed


async def test_uploads_wait_for_room_as_they_arrive_and_give_it_back(make_gateway, monkeypatch):
    """A key has half of 22 MB. What is announced and does not arrive takes none."""
    monkeypatch.setattr(limits, "MAX_RECORDINGS_BYTES", 0)
    monkeypatch.setattr(limits, "MAX_WAIT_S", 0.2)
    gateway = make_gateway(RING, max_upload_mb=10)
    async with running(gateway) as served:
        announced = [(await unfinished_upload(served, 10_000_000))[1] for _ in range(4)]
        assert (await http(served))[0] == 200
        _, first = await unfinished_upload(served, 8_000_000)
        first.write(FILE_PART + bytes(7_000_000))
        await until(lambda: gateway.recordings.used["test"] >= 7_000_000)
        reader, second = await unfinished_upload(served, 8_000_000)
        second.write(FILE_PART + bytes(7_000_000))
        assert b" 429 " in await asyncio.wait_for(reader.readline(), 60)
        assert b"no room for a recording within" in await reader.read()
        assert (await http(served))[0] == 200  # a small one
        for writer in (first, second, *announced):
            writer.close()
        await until(lambda: not gateway.recordings.used["test"])


async def test_messages_that_do_not_arrive_keep_no_key_waiting(make_gateway, monkeypatch):
    """Two keys hold all memory; a third one has none."""
    names = ("one", "two", "three")
    keys = KeyRing([(ApiKey(name, 4), hashlib.sha256(name.encode()).digest()) for name in names])
    gateway = make_gateway(keys)

    async def nothing():
        await asyncio.Event().wait()
        yield b""

    async with client(gateway) as riva_client:
        recognize = riva_client.channel.stream_unary(f"/{SERVICE}/Recognize")
        calls = [recognize(nothing(), metadata=[("authorization", f"Bearer {name}")]) for name in names[:2] * 2]
        await until(lambda: sum(gateway.messages.used[name] for name in names) >= limits.MAX_UNARY_BYTES)
        metadata = [("authorization", "Bearer three")]
        answer = await asyncio.wait_for(riva_client.recognize(recording(), metadata), limits.MAX_WAIT_S)
        assert answer.results[0].alternatives[0].transcript == "w0 w1 w2 "
        assert sum(gateway.messages.used[name] for name in names) == 3 * limits.MAX_RECOGNIZE_BYTES
        for call in calls:
            call.cancel()


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
    assert not gateway.recordings.used["test"]


async def test_a_write_that_a_client_does_not_take(monkeypatch):
    monkeypatch.setattr(limits, "UNRESPONSIVE_S", 0.02)
    limit = WriteLimit()
    await limit.write(asyncio.sleep(0))
    with pytest.raises(GatewayError) as caught:
        await limit.write(asyncio.Event().wait())
    assert caught.value.code is GatewayCode.RESULTS_UNREAD


async def test_a_write_that_is_cancelled_by_another_task_is_cancelled():
    writing = asyncio.create_task(WriteLimit().write(asyncio.Event().wait()))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing


async def test_uploads_count_against_their_key_from_the_first_byte(make_gateway):
    gateway = make_gateway(RING)
    async with running(gateway) as served:
        uploads = [await unfinished_upload(served) for _ in range(8)]
        await until(lambda: gateway.uploads.open["test"] >= 8)
        reader, writer = await unfinished_upload(served)
        head, _, body = (await asyncio.wait_for(reader.read(600), 60)).decode().partition("\r\n\r\n")
        assert head.startswith("HTTP/1.1 429 ")
        assert "retry-after: 2" in head.lower()
        assert "all 8 uploads of the API key 'test' are open" in body
        for _, other in [*uploads, (reader, writer)]:
            other.close()
        await until(lambda: not gateway.uploads.open["test"])
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


@pytest.mark.parametrize("code", GatewayCode)
async def test_every_code_has_a_status_in_each_protocol(code):
    assert 400 <= code.status.http < 600
    assert code.status.websocket in (1008, 1009, 1011, 1013) or 4000 <= code.status.websocket < 5000
    assert grpc.StatusCode[code.status.grpc]
