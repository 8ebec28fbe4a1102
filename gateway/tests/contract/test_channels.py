"""Calls whose channels are recognized each by itself: as alone, admitted and lost as one."""

import asyncio
import json

import httpx2
import numpy as np
import pytest

from client.tests.helpers.event_loop import until
from client.tests.helpers.fake_fleet import speech
from client.tests.helpers.sound_files import sound_file
from gateway.tests.contract.call import END_SEGMENT
from gateway.tests.contract.drivers import RivaFile, RivaStream
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.security.keys import ApiKey

LEFT, RIGHT = speech(1, 2, 0, 0, 0, 0, 0, 0, 3), speech(0, 0, 0, 4, 5, 0, 0, 0, 0)
SILENT = np.zeros_like(LEFT)
STEREO = np.stack([LEFT, RIGHT], axis=1)
MONO = np.frombuffer(sound_file(LEFT, 16_000, "FLAC", "PCM_16"), np.uint8)
EACH = {"enable_separate_recognition_per_channel": True}


def each(channels: int) -> dict:
    return EACH | {"audio_channel_count": channels}


async def post(served, samples: np.ndarray, **form: str) -> httpx2.Response:
    file = sound_file(samples, 16_000, "WAV", "FLOAT")
    async with httpx2.AsyncClient(base_url=f"http://{served.ports.http}", timeout=60) as client:
        headers = {"authorization": "Bearer sk-one"}
        return await client.post("/v1/audio/transcriptions", files={"file": file}, data=form, headers=headers)


@pytest.mark.parametrize("driver", [RivaStream, RivaFile])
@pytest.mark.parametrize(
    "channels", [(LEFT, RIGHT), (LEFT, SILENT), (RIGHT,), (LEFT, RIGHT, SILENT), (LEFT, RIGHT) * 4]
)
async def test_each_channel_of_a_riva_call_is_as_alone(fleet, serve, driver, channels):
    server = fleet()
    async with serve(server) as served:
        alone = [await driver.of(served.ports, samples) for samples in channels]
        parts = np.array_split(np.stack(channels, axis=1), 5)
        outcome = await driver.of(served.ports, *parts, **each(len(channels)))
        assert outcome.code == ""
        for tag, expected in enumerate(alone, start=1):
            words = [word for word, of in zip(outcome.words, outcome.channels, strict=True) if of == tag]
            assert words == expected.words
        await until(lambda: not server.batch.streams and not served.streams.live)


async def test_a_forced_end_ends_the_segments_of_all_channels(fleet, serve):
    async with serve(fleet()) as served:
        parts = STEREO[: 5 * 800], END_SEGMENT, STEREO[5 * 800 :]
        outcome = await RivaStream.of(served.ports, *parts, **each(2))
        assert sorted(outcome.texts) == ["w1 w2", "w3", "w4 w5"]


async def test_a_file_of_openai(fleet, serve):
    async with serve(fleet()) as served:
        reply = await post(served, STEREO, channels="each")
        assert reply.json()["text"] == "w1 w2 w4 w5 w3"
        more = {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]}
        body = (await post(served, STEREO, channels="EACH", **more)).json()
        found = [(part["text"], part["channel"]) for part in body["segments"]]
        assert found == [("w1 w2", "left"), ("w4 w5", "right"), ("w3", "left")]
        words = [(word["word"], word["start"], word["channel"]) for word in body["words"]]
        assert words[:3] == [("w1", 0.0, "left"), ("w2", 0.05, "left"), ("w4", 0.15, "right")]
        body = (await post(served, LEFT, channels="each", **more)).json()
        assert [part["channel"] for part in body["segments"]] == ["mono"] * 2
        for form, line in (("srt", "left: w1 w2 w3"), ("vtt", "right: w4 w5")):
            assert line in (await post(served, STEREO, channels="each", response_format=form)).text.splitlines()
        body = (await post(served, STEREO, channels="each", response_format="diarized_json")).json()
        assert {(part["text"], part["channel"]) for part in body["segments"]} >= {("w4 w5", "right")}
        assert "channel" not in (await post(served, STEREO, **more)).text


async def test_a_call_is_admitted_as_a_whole_or_not_at_all(fleet, serve):
    server = fleet()
    async with serve(server, keys=[ApiKey("one", 2)]) as served:
        other = RivaStream(served.ports)
        other.send(LEFT)
        await until(lambda: served.streams.live == 1)
        for driver in (RivaStream, RivaFile):
            outcome = await driver.of(served.ports, STEREO, **each(2))
            assert (outcome.code, outcome.status) in driver.errors(GatewayCode.STREAMS_EXHAUSTED)
            assert outcome.message == "1 of 2 streams of the API key 'one' are open, and 2 are needed"
        reply = await post(served, STEREO, channels="each")
        assert (reply.status_code, json.loads(reply.text)["error"]["code"]) == (429, "streams_exhausted")
        assert served.streams.live == 1
        other.end()
        await other.ended()
        assert (await RivaFile.of(served.ports, STEREO, **each(2))).code == ""


async def test_the_loss_of_one_channel_ends_the_call(fleet, serve):
    server = fleet()
    async with serve(server) as served:
        call = RivaStream(served.ports, **each(2))
        call.send(STEREO)
        await until(lambda: len(served.opened) == 2)
        served.opened[1].fail(GatewayError(GatewayCode.STREAM_LOST, "the replica is gone"))
        outcome = await asyncio.wait_for(call.ended(), 60)
        assert outcome.code == "STREAM_LOST"
        await until(lambda: not served.streams.live and not server.batch.streams)


async def test_wrong_channels_are_named(fleet, serve):
    server = fleet()
    async with serve(server) as served:
        for driver, options, samples, message in (
            (RivaStream, EACH, STEREO, "audio_channel_count is 0; accepted: 1 to 8, with enable_separate"),
            (RivaFile, each(9), STEREO, "audio_channel_count is 9"),
            (RivaFile, each(2) | {"encoding": "FLAC"}, MONO, "the audio has 1 channels; accepted: 2"),
            (RivaStream, each(2) | {"encoding": "FLAC"}, MONO, "the audio has 1 channels; accepted: 2"),
        ):
            assert message in (await driver.of(served.ports, samples, **options)).message
            await until(lambda: not server.batch.streams and not served.streams.live)
        for form, samples, message in (
            ({"channels": "left"}, STEREO, "channels is 'left'; accepted: 'mix' or 'each'"),
            ({"channels": "each", "stream": "true"}, STEREO, "channels is 'each'; accepted with stream: mix"),
            ({"channels": "each"}, np.zeros((1600, 9), np.float32), "has 9 channels; accepted: 1 to 8"),
        ):
            reply = await post(served, samples, **form)
            assert (reply.status_code, message in reply.text) == (400, True), reply.text
