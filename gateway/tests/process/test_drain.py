"""A gateway that stops: what live streams of each protocol still get, at the end of a drain that they outlast."""

import asyncio
import os
import re
import signal
import time

import httpx2
import numpy as np
import pytest

from client.tests.helpers.fake_servers import GrpcServer
from client.tests.helpers.fakes import FakeRecognizer, word
from gateway.tests.contract.call import Ports
from gateway.tests.contract.drivers import OpenAIFile, OpenAIStream, Realtime, RivaFile, RivaStream
from penstock_gateway.errors import GatewayCode
from trials.server.gateway import fresh_gateway

pytestmark = pytest.mark.anyio
DRIVERS = (RivaStream, RivaFile, OpenAIFile, OpenAIStream, Realtime)


@pytest.fixture
def replica():
    """A server that is slow, so that a file lasts longer than the drain."""
    recognizer = FakeRecognizer()
    recognizer.before_answer = lambda _: time.sleep(0.05)
    server = GrpcServer(recognizer)
    yield f"127.0.0.1:{server.port}"
    server.close()


async def stop_once_live(served, streams: int):
    """Stops it once this number of streams is open."""
    async with httpx2.AsyncClient(base_url=f"http://{served.metrics}", timeout=60) as client:
        while sum(map(float, re.findall(r"streams_live{.*} (\S+)", (await client.get("/metrics")).text))) < streams:
            await asyncio.sleep(0.05)
    os.kill(served.process_id, signal.SIGTERM)


async def test_the_end_of_a_drain(replica):
    """Live audio that does not end, and files of 10 minutes."""
    with fresh_gateway(replica, "--drain-seconds", "2", "--endpoint-silence-ms", "0") as served:
        calls = [driver(Ports(served.http, served.grpc), key=None) for driver in DRIVERS]
        for call in calls:
            call.send(np.full((10 if call.is_live else 600) * 16_000, 0.25, np.float32))
            if not call.is_live:
                call.end()
        await stop_once_live(served, len(calls))
        outcomes = await asyncio.gather(*(call.ended() for call in calls))
    for call, outcome in zip(calls, outcomes, strict=True):
        assert (outcome.code, outcome.status) in call.errors(GatewayCode.STREAM_LOST), call
        assert outcome.retry_after == "2" or not call.has_retry(outcome, GatewayCode.STREAM_LOST), call
        if call.tells_rest or isinstance(call, OpenAIStream):
            words = outcome.text.split()
            assert words == [word(i) for i in range(len(words))] and words
