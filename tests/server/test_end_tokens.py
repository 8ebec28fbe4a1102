"""A server whose model has end tokens: all clients have the library's segments."""

import numpy as np
import pytest

from penstock.recognizer import StreamingRecognizer
from penstock_client import BatchedClient, Client, StreamOptions, Transcript
from tests.helpers.random_models import with_end_tokens
from tests.helpers.segments import recognize, segments, speech_with_pauses
from trials.server.running import CONTEXT, RunningServer, running_server

pytestmark = [pytest.mark.server, pytest.mark.nightly]


@pytest.fixture(scope="module")
def directory(bundled_model, tmp_path_factory):
    return with_end_tokens(bundled_model, tmp_path_factory.mktemp("model"), (" four", " eight")).directory


@pytest.fixture(scope="module")
def end_token_server(directory):
    yield from running_server(directory, max_streams=8, idle_s=30.0)


def texts(transcript: Transcript) -> list[str]:
    assert " ".join(word.text for word in transcript.words) == transcript.text
    return [segment.text for segment in transcript.segments]


async def test_clients(end_token_server: RunningServer, directory):
    speech = np.round(speech_with_pauses() * 32768).astype(np.int16)  # as a file of 16 bits has it
    recognizer = StreamingRecognizer(directory, CONTEXT)
    expected = [text for text, *_ in segments(recognize(recognizer, speech / np.float32(32768), [slice(None)], {}))]
    assert len(expected) > 4
    off = StreamOptions(endpoint_tokens="off")
    with Client(end_token_server.url("grpc")) as client, Client(end_token_server.url("http"), "http") as http:
        assert texts(client.transcribe(speech, request_ms=100)) == expected
        assert texts(http.transcribe(speech, request_ms=700)) == expected
        assert len(texts(client.transcribe(speech, options=off))) == 1
    transcript = Transcript()
    async with BatchedClient(end_token_server.url("grpc")) as many, await many.open_stream() as stream:
        for block in np.array_split(speech, 40):
            await stream.push(block)
        await stream.finish()
        async for result in stream:
            transcript.add(result)
    assert texts(transcript) == expected
