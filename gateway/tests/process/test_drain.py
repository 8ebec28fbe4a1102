"""A gateway that stops: what live streams of each protocol still get, at the end of a drain that they outlast."""

import asyncio
import base64
import json
import os
import re
import signal
import time

import grpc
import httpx2
import numpy as np
import pytest
import websockets

from client.tests.helpers.fake_batch_server import BatchServer
from client.tests.helpers.fakes import FakeRecognizer, word
from client.tests.helpers.sound_files import sound_file
from gateway.tests.helpers.riva_client import audio, configuration
from loadtest.fresh_gateway import fresh_gateway
from penstock_gateway.riva.proto import riva_asr_pb2 as riva
from penstock_gateway.riva.service import SERVICE

pytestmark = pytest.mark.anyio
CHUNK = np.full(8960, 0.25, np.float32)
TEXT = "input_audio_transcription."


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


def last_word(texts):
    """The index of the last word, of words that are complete from the first on."""
    words = " ".join(texts).split()
    assert words == [word(i) for i in range(len(words))]
    return len(words) - 1


async def realtime(address):
    """Texts, then the last events and the code of the close."""
    events = []
    async with websockets.connect(f"ws://{address}/v1/realtime", max_queue=None) as socket:
        await socket.send(json.dumps({"type": "session.update", "model": ""}))  # vLLM's dialect: 16 kHz

        async def send():
            pcm = base64.b64encode((CHUNK * 32767).astype("<i2").tobytes()).decode()
            while True:
                await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": pcm}))
                await asyncio.sleep(0.5)

        sending = asyncio.create_task(send())
        try:
            while True:
                events.append(json.loads(await asyncio.wait_for(socket.recv(), 60)))
        except websockets.ConnectionClosed as closed:
            return events, closed.rcvd.code
        finally:
            sending.cancel()


async def test_realtime(served):
    client = asyncio.create_task(realtime(served.http))
    await stop_once_live(served)
    events, code = await asyncio.wait_for(client, 60)
    assert code == 1013
    assert [event["code"] for event in events if event["type"] == "error"] == ["stream_lost"]
    assert last_word(event["delta"] for event in events if event["type"].endswith("delta")) > 0
    assert events[-1]["type"] == "error"


async def test_riva(served):
    async with grpc.aio.insecure_channel(served.grpc) as channel:
        call = channel.stream_stream(
            f"/{SERVICE}/StreamingRecognize", response_deserializer=riva.StreamingRecognizeResponse.FromString
        )()
        await call.write(configuration(sample_rate_hertz=16_000))

        async def send():
            while True:
                await call.write(audio(CHUNK))
                await asyncio.sleep(0.5)

        sending = asyncio.create_task(send())
        await stop_once_live(served)
        received = []
        with pytest.raises(grpc.aio.AioRpcError) as error:
            async for response in call:
                received.append(response)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "STREAM_LOST" in error.value.details()
    assert dict(error.value.trailing_metadata())["retry-after"] == "2"
    assert last_word(response.results[0].alternatives[0].transcript for response in received) > 0


async def transcribe(served, **fields):
    """The response to 10 minutes of audio, which is stopped."""
    data = sound_file(np.full(600 * 16_000, 0.25, np.float32))
    async with httpx2.AsyncClient(base_url=f"http://{served.http}", timeout=120) as client:
        sending = asyncio.create_task(client.post("/v1/audio/transcriptions", files={"file": data}, data=fields))
        await stop_once_live(served)
        return await sending


async def test_a_file_as_a_stream(served):
    response = await transcribe(served, stream="true")
    events = [json.loads(data) for data in re.findall("data: ({.*)", response.text)]
    assert [event["error"]["code"] for event in events if "error" in event] == ["stream_lost"]
    assert "error" in events[-1]
    assert last_word(event["delta"] for event in events if "delta" in event) > 0


async def test_a_file_whose_reply_has_not_begun(served):
    response = await transcribe(served)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "stream_lost")
    assert response.headers["retry-after"] == "2"
