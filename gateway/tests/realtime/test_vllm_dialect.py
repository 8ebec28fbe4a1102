"""vLLM's dialect without a socket."""

import base64
import json

import pytest

from gateway.tests.helpers.fake_streams import FakeStreams
from gateway.tests.helpers.realtime_events import send
from penstock_client.audio.pcm import RawFormat
from penstock_gateway.config import Config
from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.realtime.dialect import END_SEGMENT, Audio, Configure
from penstock_gateway.realtime.protocol import RealtimeProtocol
from penstock_gateway.stream.events import Final, Partial
from penstock_gateway.stream.options import LiveStreamOptions


def append(protocol, data=b"abcd"):
    return send(protocol, "input_audio_buffer.append", audio=base64.b64encode(data).decode())


@pytest.fixture
def protocol():
    protocol = RealtimeProtocol(FakeStreams(), Config())
    assert send(protocol, "session.update", model="fake-asr") == [
        Configure(RawFormat("s16le", 16000), LiveStreamOptions(model="fake-asr", endpoint_silence_ms=800))
    ]
    return protocol


def final(text, forced=False):
    return Final(0, text, (), (), 1.0, 1.0, False, forced)


def done(text):
    return {"type": "transcription.done", "text": text, "usage": None}


def delta(text):
    return {"type": "transcription.delta", "delta": text}


def test_the_first_event_has_the_fields_of_vllm():
    (created,) = RealtimeProtocol(FakeStreams(), Config()).opened()
    assert created["type"] == "session.created"
    assert isinstance(created["id"], str)
    assert isinstance(created["created"], int)


def test_two_texts_on_one_connection(protocol):
    assert send(protocol, "input_audio_buffer.commit") == []
    assert append(protocol) == [Audio(b"abcd")]
    events = [*protocol.result(Partial(0, "one tw", 3, (), 0.5)), *protocol.result(final("one two"))]
    events += protocol.result(Partial(1, "three", 5, (), 1.0))
    assert send(protocol, "input_audio_buffer.commit", final=True) == [END_SEGMENT]
    events += protocol.result(final("three four", forced=True))
    deltas = [delta("one"), delta(" two"), delta(" three"), delta(" four")]
    assert events == [*deltas, done("one two three four")]
    append(protocol)
    send(protocol, "input_audio_buffer.commit", final=True)
    assert protocol.result(final("五。")) == [delta("五。")]
    assert protocol.result(final("六", forced=True)) == [delta("六"), done("五。六")]


def test_silence_and_no_audio_have_an_empty_text(protocol):
    assert send(protocol, "input_audio_buffer.commit", final=True) == [done("")]
    append(protocol)
    send(protocol, "input_audio_buffer.commit", final=True)
    assert protocol.result(final("", forced=True)) == [done("")]


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"type": "session.update", "model": "nothing"}, "model_not_found"),
        ({"type": "session.update", "model": 5}, "field_invalid"),
        ({"type": "input_audio_buffer.append", "audio": "#"}, "audio_invalid"),
        ({"type": "input_audio_buffer.commit", "final": "yes"}, "field_invalid"),
        ({"type": "response.create"}, "field_invalid"),
    ],
)
def test_errors_are_strings(protocol, event, code):
    (error,) = protocol.receive(json.dumps(event))
    assert (error["type"], error["code"]) == ("error", code)
    assert isinstance(error["error"], str)


def test_a_lost_stream(protocol):
    (error,) = protocol.failed(GatewayError(ErrorCode.STREAM_LOST, "the replica is gone"))
    assert error == {"type": "error", "error": "the replica is gone", "code": "stream_lost"}
