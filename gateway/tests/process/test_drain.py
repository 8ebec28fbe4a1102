"""A gateway that stops: what live streams of each protocol still get, at the end of a drain that they outlast."""

import asyncio
import os
import re
import signal
import time

import httpx2
import numpy as np
import pytest

from client.tests.helpers.fake_batch_server import BatchServer
from client.tests.helpers.fakes import FakeRecognizer, word
from gateway.tests.contract.drivers import OpenAIFile, OpenAIStream, Ports, Realtime, RivaFile, RivaStream
from loadtest.fresh_gateway import fresh_gateway
from penstock_gateway.errors import ErrorCode

pytestmark = pytest.mark.anyio


@pytest.fixture
def replica():
    """A server that is slow, so that a file lasts longer than the drain."""
    recognizer = FakeRecognizer()
    recognizer.before_answer = lambda _: time.sleep(0.05)
    server = BatchServer(recognizer)
    yield f"127.0.0.1:{server.port}"
    server.close()


@pytest.fixture
def served(replica):
    with fresh_gateway(replica, "--drain-seconds", "2", "--endpoint-silence-ms", "0") as served:
        yield served


async def stop_once_live(served):
    """Stops it once a stream is open."""
    async with httpx2.AsyncClient(base_url=f"http://{served.metrics}", timeout=60) as client:
        while not re.search(r"streams_live{.*} 1.0", (await client.get("/metrics")).text):
            await asyncio.sleep(0.05)
    os.kill(served.process_id, signal.SIGTERM)


@pytest.mark.parametrize("driver", [RivaStream, RivaFile, OpenAIFile, OpenAIStream, Realtime])
async def test_the_end_of_a_drain(served, driver):
    """Live audio that does not end, or a file of 10 minutes."""
    call = driver(Ports(served.http, served.grpc), key=None)
    call.send(np.full((10 if driver.is_live else 600) * 16_000, 0.25, np.float32))
    if not driver.is_live:
        call.end()
    await stop_once_live(served)
    outcome = await call.ended()
    assert (outcome.code, outcome.status) in driver.errors(ErrorCode.STREAM_LOST)
    assert outcome.retry_after == "2" or not driver.has_retry(outcome, ErrorCode.STREAM_LOST)
    if driver.tells_rest or driver is OpenAIStream:
        words = outcome.text.split()
        assert words == [word(i) for i in range(len(words))] and words
