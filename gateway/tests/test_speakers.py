"""One rule for speakers in all protocols: the same ones where they are served, else the same error. Real sockets."""

import asyncio
import base64
import json
import math

import grpc
import httpx2
import pytest
import websockets

from client.tests.helpers.fake_speakers import voices
from client.tests.helpers.sound_files import sound_file
from gateway.tests.helpers.riva_client import Client, configuration, pieces
from gateway.tests.kserve.conftest import headers, serve  # noqa: F401
from gateway.tests.stream.conftest import metrics, open_streams, server, servers  # noqa: F401
from penstock_client import AsyncClient, ClientError, ConnectionOptions, StreamOptions
from penstock_client.speakers import track

pytestmark = pytest.mark.anyio
AUDIO = voices(2, 2, 1, 1, 2)
SPEAKERS = [1, 1, 1, 1, 2, 2, 2, 2, 1, 1]
"""Words have 50 ms."""
PCM = (AUDIO * 32767).astype("<i2").tobytes()
DIARIZATION = {"enable_speaker_diarization": True, "max_speaker_count": 4}
BEARER = headers()
METADATA = tuple(BEARER.items())


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """Words wait for the model, however busy this machine is."""
    monkeypatch.setattr(track, "LIVE_WAITS", track.Waits(late_s=math.inf))


def numbers(names):
    return ["AB".index(name) + 1 for name in names]


async def openai_file(ports):
    async with httpx2.AsyncClient(base_url=ports.url, timeout=60, headers=BEARER) as client:
        form = {"response_format": "verbose_json", "speakers": "on", "timestamp_granularities[]": "word"}
        file = {"file": ("a", sound_file(AUDIO))}
        body = (await client.post("/v1/audio/transcriptions", data=form, files=file)).json()
        return body["error"]["code"] if "error" in body else numbers(word["speaker"] for word in body["words"])


async def diarized_json(ports):
    async with httpx2.AsyncClient(base_url=ports.url, timeout=60, headers=BEARER) as client:
        form = {"response_format": "diarized_json", "model": "gpt-4o-transcribe-diarize"}
        file = {"file": ("a", sound_file(AUDIO))}
        body = (await client.post("/v1/audio/transcriptions", data=form, files=file)).json()
        if "error" in body:
            return body["error"]["code"]
        words = [(part["speaker"], round((part["end"] - part["start"]) / 0.05)) for part in body["segments"]]
        return [who for name, count in words for who in numbers(name) * count]


def tags(results):
    return [word.speaker_tag for result in results for word in result.alternatives[0].words]


async def riva_calls(ports, call):
    async with grpc.aio.insecure_channel(ports.grpc_address) as channel:
        with grpc.insecure_channel(ports.grpc_address) as threaded:
            try:
                return tags(await call(Client(channel, threaded)))
            except grpc.RpcError as error:
                return error.details().partition(":")[0]


async def riva_file(ports):
    async def call(client):
        return (await client.recognize(sound_file(AUDIO), METADATA, diarization_config=DIARIZATION)).results

    return await riva_calls(ports, call)


async def riva_stream(ports):
    async def call(client):
        messages = [configuration(True, diarization_config=DIARIZATION), *pieces(AUDIO)]
        return [result for reply in await client.send_all(messages, METADATA) for result in reply.results]

    return await riva_calls(ports, call)


async def realtime(ports, messages, words):
    async with websockets.connect(ports.ws_url + "/v1/realtime", additional_headers=BEARER) as socket:
        for message in messages:
            await socket.send(json.dumps(message))
        while (event := json.loads(await asyncio.wait_for(socket.recv(), 60)))["type"] != "error":
            if event["type"].endswith(".completed"):
                return words(event)
        return event["error"]["code"]


async def realtime_openai(ports):
    audio = {"format": {"type": "audio/pcm", "rate": 16_000}, "transcription": {"speakers": 4}, "turn_detection": None}
    session = {"audio": {"input": audio}, "include": ["item.input_audio_transcription.words"]}
    data = base64.b64encode(PCM).decode()
    messages = [
        {"type": "session.update", "session": {"type": "transcription", **session}},
        {"type": "input_audio_buffer.append", "audio": data},
        {"type": "input_audio_buffer.commit"},
        {"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(16_000)).decode()},  # the look-ahead
    ]
    return await realtime(ports, messages, lambda event: numbers(word["speaker"] for word in event["words"]))


async def realtime_riva(ports):
    messages = [
        {"type": "transcription_session.update", "session": {"speaker_diarization": DIARIZATION}},
        {"type": "input_audio_buffer.append", "audio": base64.b64encode(PCM).decode()},
        {"type": "input_audio_buffer.done"},
    ]
    return await realtime(ports, messages, lambda event: [word["speaker_tag"] for word in event["words_info"]["words"]])


async def kserve(ports):
    options = ConnectionOptions(headers=BEARER)
    async with AsyncClient(ports.grpc_address, timeout_s=60, connection_options=options) as client:
        try:
            transcript = await client.transcribe(AUDIO, options=StreamOptions(speakers=4), request_ms=50)
        except ClientError as error:
            return error.code
        return [word.speaker for word in transcript.words]


PROTOCOLS = [openai_file, diarized_json, riva_file, riva_stream, realtime_openai, realtime_riva, kserve]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_speakers_are_the_same_in_all_protocols(serve, server, protocol):  # noqa: F811
    async with serve(server) as served:
        assert await protocol(served.sockets) == SPEAKERS
        server.speakers.is_served = False
        assert (await protocol(served.sockets)).upper() == "SPEAKERS_NOT_SERVED"
