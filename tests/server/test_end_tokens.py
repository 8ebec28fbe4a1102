"""A server whose model has end tokens: all clients, also those that reconnect, have the library's segments."""

import asyncio
import contextlib
from collections.abc import Iterator

import grpc
import httpx2
import numpy as np
import pytest
import soundfile

from client.tests.helpers.fake_servers import Wire
from loadtest.fresh_gateway import RunningGateway
from penstock.model.bundle import Checkpoint
from penstock.recognizer import StreamingRecognizer
from penstock_client import BatchedClient, Client, ConnectionOptions, StreamOptions, Transcript
from penstock_client.transport.replay import Replay
from penstock_gateway.riva.proto import riva_asr_pb2 as riva
from penstock_gateway.riva.service import SERVICE
from tests.helpers.random_models import with_end_tokens
from tests.helpers.segments import recognize, segments, speech_with_pauses
from trials.server.running import CONTEXT, RunningServer, running_gateway, running_server

pytestmark = [pytest.mark.server, pytest.mark.nightly]
SILENCE_MS = 10_000
"""Clients of the gateway order endpoints by a silence, which is longer than any of the recording."""


@pytest.fixture(scope="module")
def checkpoint(bundled_model, tmp_path_factory) -> Checkpoint:
    return with_end_tokens(bundled_model, tmp_path_factory.mktemp("model"), (" four", " eight"))


@pytest.fixture(scope="module")
def end_token_server(checkpoint) -> Iterator[RunningServer]:
    yield from running_server(checkpoint.directory, max_streams=8, idle_s=30.0)


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    """As a file of 16 bits has it."""
    return np.round(speech_with_pauses() * 32768).astype(np.int16)


@pytest.fixture(scope="module")
def expected(checkpoint, speech) -> list[str]:
    recognizer = StreamingRecognizer(checkpoint.directory, CONTEXT)
    found = [text for text, *_ in segments(recognize(recognizer, speech / np.float32(32768), [slice(None)], {}))]
    assert len(found) > 4
    return found


@pytest.fixture(scope="module")
def gateway(end_token_server) -> Iterator[RunningGateway]:
    with running_gateway(end_token_server, "--endpoint-silence-ms", str(SILENCE_MS)) as addresses:
        yield addresses


def texts(transcript: Transcript) -> list[str]:
    assert " ".join(word.text for word in transcript.words) == transcript.text
    return [segment.text for segment in transcript.segments]


def test_clients(end_token_server, speech, expected):
    off = StreamOptions(endpoint_tokens="off")
    with Client(end_token_server.url("grpc")) as client, Client(end_token_server.url("http"), "http") as http:
        assert texts(client.transcribe(speech, request_ms=100)) == expected
        assert texts(http.transcribe(speech, request_ms=700)) == expected
        assert len(texts(client.transcribe(speech, options=off))) == 1

    async def run() -> Transcript:
        transcript = Transcript()
        async with BatchedClient(end_token_server.url("grpc")) as many, await many.open_stream() as stream:
            for block in np.array_split(speech, 40):
                await stream.push(block)
            await stream.finish()
            async for result in stream:
                transcript.add(result)
        return transcript

    assert texts(asyncio.run(run())) == expected


def test_a_lost_connection_goes_on_at_the_last_end_token(end_token_server, speech, expected, monkeypatch):
    resumed_at_endpoints, restart = [], Replay.restart

    def noted(replay, *given):
        resumed_at_endpoints.append(replay.needs_geometry)
        return restart(replay, *given)

    monkeypatch.setattr(Replay, "restart", noted)
    options = ConnectionOptions(reconnect_s=120)
    with (
        contextlib.closing(Wire(end_token_server.ports.grpc)) as wire,
        Client(f"127.0.0.1:{wire.port}", timeout_s=60, connection_options=options) as client,
        client.open_stream() as stream,
    ):
        for number, block in enumerate(np.array_split(speech, 20)):
            stream.send(block)
            if number == 15:
                while sum(segment.is_final for segment in stream.transcript.segments) < 2:
                    list(stream.poll(60))
                wire.cut()
        stream.finish()
        list(stream)
    assert resumed_at_endpoints and all(resumed_at_endpoints)
    assert texts(stream.transcript) == expected


def test_clients_of_a_gateway(gateway, speech, expected, tmp_path):
    path = tmp_path / "speech.wav"
    soundfile.write(path, speech, 16_000)
    spoken = [text for text in expected if text]
    fields = {"response_format": "verbose_json"}
    url = f"http://{gateway.http}/v1/audio/transcriptions"
    body = httpx2.post(url, files={"file": path.read_bytes()}, data=fields, timeout=60).json()
    assert [segment["text"] for segment in body["segments"]] == spoken
    with grpc.insecure_channel(gateway.grpc) as channel:
        recognize_file = channel.unary_unary(
            f"/{SERVICE}/Recognize",
            request_serializer=riva.RecognizeRequest.SerializeToString,
            response_deserializer=riva.RecognizeResponse.FromString,
        )
        config = riva.RecognitionConfig(verbatim_transcripts=True)
        request = riva.RecognizeRequest(config=config, audio=path.read_bytes())
        results = recognize_file(request, timeout=60).results
        assert [result.alternatives[0].transcript.strip() for result in results] == spoken
        request.config.custom_configuration["endpoint_tokens"] = "off"
        assert len(recognize_file(request, timeout=60).results) == 1
