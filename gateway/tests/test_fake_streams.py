"""The fake keeps the contract of a live stream, as the tests of protocols rely on it."""

import pytest

from gateway.tests.helpers.fake_streams import FakeStreams, speech
from penstock_gateway.security.keys import ANONYMOUS
from penstock_gateway.stream.events import Final, Partial
from penstock_gateway.stream.options import LiveStreamOptions

pytestmark = pytest.mark.anyio


async def test_words_follow_from_the_audio():
    stream = await FakeStreams().open(LiveStreamOptions(endpoint_silence_ms=300), ANONYMOUS, "test")
    await stream.push(speech(0.2, 0.5, 0.1))
    await stream.end_segment()
    await stream.end_segment()
    await stream.finish()
    events = [event async for event in stream.events()]
    assert [event.text for event in events if isinstance(event, Partial)] == ["w0", "w0 w1", "w2"]
    finals = [event for event in events if isinstance(event, Final)]
    assert [(final.text, final.forced, final.is_last) for final in finals] == [
        ("w0 w1", False, False), ("w2", True, False), ("", True, False), ("", False, True),
    ]  # fmt: skip
    assert finals[0].end_s == pytest.approx(0.2)  # less than 0.4 s before the endpoint
