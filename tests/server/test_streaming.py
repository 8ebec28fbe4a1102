"""Streams through a real Triton server give the results of the same core in this process."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from penstock.frontend.audio_file import read_audio
from penstock.recognizer import StreamingRecognizer
from penstock.transcription.files import FileTranscriber
from penstock_client import Client, ServerFullError
from tests.helpers.golden import golden_utterances
from trials.server.resources import read_metrics, wait_until_free
from trials.server.running import CONTEXT, RunningServer, wait_until

pytestmark = pytest.mark.server

UTTERANCES = [utterance.path for utterance in golden_utterances()]
REQUEST_SAMPLES = (1531, 160, 4007, 799, 16000, 48000, 320, 2400)


@dataclass(frozen=True)
class Outcome:
    """All results of one stream."""

    text: str
    tokens: tuple[int, ...]
    timestamps: tuple[int, ...]
    words: tuple[tuple[str, int, int], ...]


@pytest.fixture(scope="module")
def expected(bundled_model) -> list[Outcome]:
    """The results of this process for each utterance."""
    recognizer = StreamingRecognizer(bundled_model, CONTEXT, max_streams=4)
    transcripts = list(FileTranscriber(recognizer, 1600).transcribe(UTTERANCES))
    assert all(transcript.text for transcript in transcripts)
    return [
        Outcome(
            transcript.text,
            tuple(token.id for token in transcript.tokens),
            tuple(token.timestamp for token in transcript.tokens),
            tuple(word[:3] for word in transcript.words),
        )
        for transcript in transcripts
    ]


def recognize(client: Client, samples: np.ndarray, request_samples: int) -> Outcome:
    """Streams `samples` in requests of one size and collects all results."""
    with client.open_stream() as stream:
        for start in range(0, len(samples), request_samples):
            stream.send(samples[start : start + request_samples])
        stream.finish()
        results = list(stream)
        assert [result.is_final for result in results] == [False] * (len(results) - 1) + [True]
        processed = [result.audio_processed_s for result in results]
        assert processed == sorted(processed)
        assert processed[-1] == pytest.approx(len(samples) / 16000)
        words = tuple((word.text, word.start_ms, word.end_ms) for word in stream.transcript.words)
        transcript = stream.transcript
        return Outcome(transcript.text, tuple(transcript.tokens), tuple(transcript.timestamps), words)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_many_files_at_once_equal_this_process(server: RunningServer, expected, protocol):
    with Client(server.url(protocol), protocol) as client, ThreadPoolExecutor(20) as pool:
        jobs = [
            pool.submit(
                recognize, client, read_audio(UTTERANCES[i % 6], 16000), REQUEST_SAMPLES[i % len(REQUEST_SAMPLES)]
            )
            for i in range(20)
        ]
        for i, job in enumerate(jobs):
            assert job.result(timeout=60) == expected[i % 6]


def test_a_full_server_rejects_at_once_and_disturbs_no_other_stream(small_server: RunningServer, expected):
    samples = read_audio(UTTERANCES[0], 16000)
    with Client(small_server.url("grpc")) as client:
        streams = [client.open_stream() for _ in range(small_server.max_streams)]
        for stream in streams:
            stream.send(samples[:20000])
            assert stream.poll(wait_s=60)
        with pytest.raises(ServerFullError, match=f"^STREAM_LIMIT: .*all {small_server.max_streams} stream slots"):
            client.transcribe(samples)  # while every stream keeps its slot
        for stream in streams:
            stream.finish(samples[20000:])
            assert list(stream)[-1].text == expected[0].text
        assert recognize(client, samples, 1600) == expected[0]


def test_clients_killed_in_mid_stream_give_their_slots_back(small_server: RunningServer, expected):
    command = [sys.executable, "-m", "penstock_client.cli", "--url", small_server.url("grpc"), "--simulate-realtime"]
    clients = [
        subprocess.Popen([*command, *map(str, UTTERANCES)], stdout=subprocess.DEVNULL)  # long enough for all to start
        for _ in range(small_server.max_streams)
    ]
    slots = small_server.max_streams
    wait_until(lambda: read_metrics(small_server)["streams_live"] == slots, 60.0, "slots are free")
    for client in clients:
        client.kill()
        client.wait(timeout=60)
    wait_until_free(small_server, timeout_s=small_server.idle_s + 60)
    with Client(small_server.url("grpc")) as client, ThreadPoolExecutor(small_server.max_streams) as pool:
        jobs = [
            pool.submit(recognize, client, read_audio(UTTERANCES[1], 16000), 1600)
            for _ in range(small_server.max_streams)
        ]
        for job in jobs:
            assert job.result(timeout=60) == expected[1]
