"""Calls of the streams of a gateway, and what its tests look at."""

import numpy as np
import pytest

from penstock_gateway.config import ReplicaGroup
from penstock_gateway.errors import GatewayError
from penstock_gateway.security.keys import ANONYMOUS
from penstock_gateway.stream.options import LiveStreamOptions

WORD_SAMPLES = 800


def audio(words):
    return np.full(words * WORD_SAMPLES, 0.25, np.float32)


def opened(streams, key=ANONYMOUS, **options):
    return streams.open(LiveStreamOptions(**options), key, "test")


def named(**servers):
    """A group of one replica for each name."""
    return tuple(ReplicaGroup(name, (f"127.0.0.1:{server.port}",)) for name, server in servers.items())


async def rejection(awaitable):
    with pytest.raises(GatewayError) as caught:
        await awaitable
    return caught.value


async def events_of(stream):
    return [event async for event in stream.events()]
