"""Replies that take longer than proxies wait for a byte."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx2
import pytest

from client.tests.helpers.event_loop import until
from client.tests.helpers.sound_files import sound_file
from gateway.tests.helpers.fake_streams import speech
from gateway.tests.helpers.running import http_client, running
from penstock_gateway import limits
from penstock_gateway.audio.container import DecodedRecording
from penstock_gateway.errors import GatewayCode, GatewayError

WORDS = "w0 w1 w2"
COMMENT = ": keep-alive\n\n"


@pytest.fixture(autouse=True)
def interval(monkeypatch):
    monkeypatch.setattr(limits, "KEEP_ALIVE_S", 0.02)


@pytest.fixture
def stall(streams, monkeypatch):
    """Stalls a job before its first block or after it, until the event is set; then it may fail."""
    go_on, failures = asyncio.Event(), []
    blocks = DecodedRecording.blocks

    async def stalled_blocks(recording):
        await go_on.wait()
        if failures:
            raise failures[0]
        async for block in blocks(recording):
            yield block

    class Stalled(list):
        def append(self, stream):
            stream.room = go_on
            super().append(stream)

    def at(place, failure=None):
        failures.extend([failure] if failure else [])
        if place == "decoding":
            monkeypatch.setattr(DecodedRecording, "blocks", stalled_blocks)
        else:
            streams.opened = Stalled()
        return go_on

    return at


@asynccontextmanager
async def replying(gateway, **fields):
    """The reply to an upload, while it may still be on its way."""
    async with http_client(gateway) as client:
        request = client.build_request(
            "POST", "/v1/audio/transcriptions", data={"prompt": "x", **fields}, files={"file": sound_file(speech(0.3))}
        )
        response = await client.send(request, stream=True)
        yield response
        await response.aclose()


async def read_after(response, keep_alives, go_on):
    """The whole reply, which goes on after these keep-alives."""
    text = ""
    async for part in response.aiter_text():
        text += part
        if len(text) >= len(keep_alives):
            go_on.set()
    assert text.startswith(keep_alives)
    return text


@pytest.mark.parametrize("place", ["decoding", "recognition"])
@pytest.mark.parametrize("form", ["json", "verbose_json"])
async def test_a_document_begins_with_whitespace(gateway, streams, stall, place, form):
    go_on = stall(place)
    async with replying(gateway, response_format=form) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
        assert response.headers["penstock-ignored"] == "prompt"
        assert json.loads(await read_after(response, "   ", go_on))["text"] == WORDS
    assert streams.opened[0].is_cancelled
    assert not gateway.recordings.used["anonymous"]


@pytest.mark.parametrize("place", ["decoding", "recognition"])
async def test_a_stream_has_comments(gateway, streams, stall, place):
    go_on = stall(place)
    async with replying(gateway, stream="true") as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["penstock-ignored"] == "prompt"
        assert gateway.recordings.used["anonymous"]
        text = await read_after(response, 3 * COMMENT, go_on)
    events = [json.loads(line.removeprefix("data: ")) for line in text.replace(COMMENT, "").split("\n\n") if line]
    assert events[-1]["text"] == "".join(event["delta"] for event in events[:-1]) == WORDS
    assert streams.opened[0].is_cancelled


@pytest.mark.parametrize(("form", "begin"), [("text", "w0"), ("srt", "1\n"), ("vtt", "WEBVTT\n")])
async def test_other_formats_have_no_keep_alives(gateway, stall, form, begin):
    go_on = stall("recognition")
    asyncio.get_running_loop().call_later(0.2, go_on.set)
    async with replying(gateway, response_format=form) as response:
        assert (await response.aread()).decode().startswith(begin)
        assert "content-length" in response.headers


@pytest.mark.parametrize(("fields", "keep_alive"), [({}, " "), ({"stream": "true"}, COMMENT)])
async def test_an_error_behind_keep_alives_is_in_the_reply_and_the_log(gateway, stall, fields, keep_alive, caplog):
    caplog.set_level("INFO")
    go_on = stall("decoding", GatewayError(GatewayCode.AUDIO_INVALID, "the audio is damaged"))
    async with replying(gateway, **fields) as response:
        assert response.status_code == 200
        text = await read_after(response, 2 * keep_alive, go_on)
    last = json.loads(text.replace(COMMENT, "").strip().removeprefix("data: "))
    assert (last["error"]["code"], last["error"]["message"]) == ("audio_invalid", "the audio is damaged")
    labels = {"protocol": "openai", "reason": "AUDIO_INVALID"}
    assert gateway.metrics.registry.get_sample_value("penstock_gateway_rejected_total", labels) == 1


@pytest.mark.parametrize("fields", [{}, {"stream": "true"}])
async def test_an_error_before_the_first_keep_alive_has_its_status(gateway, stall, fields, monkeypatch):
    monkeypatch.setattr(limits, "KEEP_ALIVE_S", 60.0)
    stall("decoding", GatewayError(GatewayCode.AUDIO_INVALID, "the audio is damaged")).set()
    async with replying(gateway, **fields) as response:
        assert response.status_code == 400


@pytest.mark.parametrize("fields", [{}, {"stream": "true"}])
@pytest.mark.parametrize("place", ["decoding", "recognition"])
async def test_a_client_that_disconnects_behind_keep_alives_ends_its_job(gateway, streams, stall, place, fields):
    stall(place)
    async with running(gateway) as served:
        async with httpx2.AsyncClient(base_url=served.url, timeout=60) as client:
            files = {"file": sound_file(speech(0.3))}
            async with client.stream("POST", "/v1/audio/transcriptions", data=fields, files=files) as response:
                parts = response.aiter_bytes()  # its end would close the connection
                await anext(parts)
                await until(lambda: place != "recognition" or streams.opened)
        await until(lambda: not gateway.recordings.used["anonymous"])
        assert all(stream.is_cancelled for stream in streams.opened)
        assert len(streams.opened) == (place == "recognition")
