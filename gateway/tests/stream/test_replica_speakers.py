"""Streams that ask for speakers go to a replica that serves them, and tell the speaker of each word."""

import pytest

from client.tests.helpers.event_loop import until
from client.tests.helpers.fake_fleet import speech
from client.tests.helpers.fake_speakers import voices
from gateway.tests.helpers.stream_calls import events_of, opened, rejection
from penstock_client import limits as engine_limits
from penstock_gateway.errors import GatewayCode
from penstock_gateway.stream.options import LiveStreamOptions


async def test_speakers_come_from_a_replica_that_has_them(servers, open_streams):
    one, other = servers(), servers()
    one.speakers.is_served = False
    async with open_streams(one, other) as streams:
        for _ in range(4):
            stream = await opened(streams, speakers=2)
            await stream.push(voices(1, 1))
            await stream.finish()
            assert (await events_of(stream))[-1].words[-1].speaker == 1
        other.speakers.is_served = False
        error = await rejection(opened(streams, speakers="on"))
        assert error.code is GatewayCode.SPEAKERS_NOT_SERVED
        assert "--speakers BUNDLE" in error.message
        error = await rejection(opened(streams, speakers=9))
        assert error.code is GatewayCode.FIELD_INVALID and "2 to 8" in error.message
        assert await opened(streams)


async def test_a_stream_with_speakers_goes_where_their_model_has_room(servers, open_streams):
    one, other = servers(), servers()
    async with open_streams(one, other) as streams:
        one.speakers.max_streams = 0
        for _ in range(4):
            await opened(streams, speakers="on")
        assert len(other.speakers.audio) == 4
        other.speakers.is_served = False
        error = await rejection(opened(streams, speakers="on"))
        assert (error.code, error.message) == (GatewayCode.STREAMS_EXHAUSTED, "all speaker models are full")


async def test_the_mode_of_whole_files_is_rejected_for_live_streams(servers, open_streams):
    given = {"speakers": "on", "extra": {"speaker_mode": "file"}}
    async with open_streams(server := servers()) as streams:
        error = await rejection(opened(streams, **given))
        assert error.code is GatewayCode.FIELD_INVALID
        assert error.message.startswith("speaker_mode is 'file'") and "low_latency" in error.message
        stream = await opened(streams, speakers="on")
        options = LiveStreamOptions(**given)
        error = await rejection(streams.change(stream, options))
        assert error.code is GatewayCode.FIELD_INVALID
        assert await opened(streams, **given, is_file=True)
        assert server.speakers.modes[-1] == "file"


@pytest.mark.parametrize("is_known", [False, True])
async def test_speakers_are_not_served_only_where_no_replica_may_have_them(servers, open_streams, is_known):
    """A replica that is full, or down and known to have them, will take the stream later."""
    one, other = servers(1), servers()
    other.speakers.is_served = False
    async with open_streams(one, other) as streams:
        first = next(each for each in streams._groups[0].replicas if str(one.port) in each.address)
        if is_known:
            stream = await opened(streams, speakers="on")
            await stream.cancel()
            first.note_down("stopped")
        else:
            first.note_full(3600.0)
        assert (await rejection(opened(streams, speakers="on"))).code is GatewayCode.STREAMS_EXHAUSTED


@pytest.mark.parametrize("max_streams", [1, 8])
async def test_where_the_speaker_model_is_lost_the_words_go_on(fleet, open_streams, monkeypatch, max_streams):
    """Also on a replica that is full: the stream has a place there already."""
    monkeypatch.setattr(engine_limits, "MOVE_S", 1.0)
    async with open_streams(server := fleet(max_streams=max_streams)) as streams:
        stream = await opened(streams, speakers="on")
        await stream.push(speech(1, 2))
        server.speakers.is_away = True
        server.batch.streams.clear()  # `penstock serve` ends the streams of a speaker model that has ended
        await stream.push(speech(3, 4))
        await stream.finish()
        final = (await events_of(stream))[-1]
        assert final.text == "w1 w2 w3 w4" and not any(word.speaker for word in final.words)
        await until(lambda: not streams._groups[0].replicas[0].live and not server.batch.streams)
