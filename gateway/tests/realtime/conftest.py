"""OpenAI's protocol without a socket."""

import pytest

from gateway.tests.helpers.fake_streams import FakeStreams
from penstock_gateway.config import Config
from penstock_gateway.realtime.protocol import RealtimeProtocol


@pytest.fixture
def protocol():
    return RealtimeProtocol(FakeStreams(), Config())
