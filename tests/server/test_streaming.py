"""The whole way through a real Triton server: what comes back is what the same core gives in this process."""

import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from penstock.audio import read_audio
from penstock.file_transcriber import FileTranscriber
from penstock.recognizer import StreamingRecognizer
from penstock_client import Client, ServerFullError, StreamError, StreamNotOpenError
from tests.golden import golden_utterances
from tests.server.conftest import CONTEXT, RunningServer
from tests.server.resources import wait_until_free, wait_until_full

pytestmark = pytest.mark.server

UTTERANCES = [utterance.path for utterance in golden_utterances()]
PIECE_SAMPLES = (1531, 160, 4007, 799, 16000, 48000, 320, 2400)


@dataclass(frozen=True)
class Heard:
    """What one stream was told in all."""

    text: str
    tokens: tuple[int, ...]
    timestamps: tuple[int, ...]
    words: tuple[tuple[str, int, int], ...]


@pytest.fixture(scope="module")
def expected(bundled_model) -> list[Heard]:
    """What this process makes of each utterance."""
    recognizer = StreamingRecognizer(bundled_model, CONTEXT, max_streams=4)
    transcripts = list(FileTranscriber(recognizer, piece_samples=1600).transcribe(UTTERANCES))
    assert all(transcript.text for transcript in transcripts)
    return [
        Heard(
            transcript.text,
            tuple(token.id for token in transcript.tokens),
            tuple(token.timestamp for token in transcript.tokens),
            tuple(word[:3] for word in transcript.words),
        )
        for transcript in transcripts
    ]


def hear(client: Client, samples: np.ndarray, piece_samples: int, stream_id=None) -> Heard:
    """Streams `samples` in pieces of one size and gathers everything that comes back."""
    with client.open_stream(stream_id) as stream:
        for start in range(0, len(samples), piece_samples):
            stream.send(samples[start : start + piece_samples])
        stream.finish()
        results = list(stream)
        assert [result.is_final for result in results] == [False] * (len(results) - 1) + [True]
        processed = [result.audio_processed_s for result in results]
        assert processed == sorted(processed)
        assert processed[-1] == pytest.approx(len(samples) / 16000)
        words = tuple((word.text, word.start_ms, word.end_ms) for word in stream.transcript.words)
        transcript = stream.transcript
        return Heard(transcript.text, tuple(transcript.tokens), tuple(transcript.timestamps), words)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_many_files_at_once_equal_this_process(server: RunningServer, expected, protocol):
    with Client(server.url(protocol), protocol) as client, ThreadPoolExecutor(20) as pool:
        jobs = [
            pool.submit(hear, client, read_audio(UTTERANCES[i % 6], 16000), PIECE_SAMPLES[i % len(PIECE_SAMPLES)])
            for i in range(20)
        ]
        for i, job in enumerate(jobs):
            assert job.result(timeout=60) == expected[i % 6]


@pytest.mark.parametrize("stream_id", [7, 2**40, "a name", "naïve"])
def test_ids_are_numbers_or_strings(server: RunningServer, expected, stream_id):
    with Client(server.url("grpc")) as client:
        assert hear(client, read_audio(UTTERANCES[0], 16000), 3000, stream_id) == expected[0]


def test_a_stream_without_audio_is_empty(server: RunningServer):
    with Client(server.url("grpc")) as client:
        assert client.transcribe(np.zeros(0, np.float32)).text == ""


def test_random_pieces_with_empty_ones(server: RunningServer, expected):
    chance = random.Random(5)
    samples = read_audio(UTTERANCES[3], 16000)
    with Client(server.url("grpc")) as client, client.open_stream() as stream:
        start = 0
        while start < len(samples):
            size = chance.choice([0, 1, 33, 5000, 20000])
            stream.send(samples[start : start + size])
            start += size
        stream.finish()
        assert list(stream)[-1].text == expected[3].text


def test_start_on_a_live_id_begins_afresh(server: RunningServer, expected):
    with Client(server.url("grpc")) as client, Client(server.url("grpc")) as other:
        first = client.open_stream("restarted")
        first.send(read_audio(UTTERANCES[1], 16000))
        assert first.poll(wait_s=10)
        assert hear(other, read_audio(UTTERANCES[0], 16000), 1600, "restarted") == expected[0]


def test_bad_samples_are_refused_for_that_stream_alone(server: RunningServer, expected):
    with Client(server.url("grpc")) as client, ThreadPoolExecutor(1) as pool:
        neighbour = pool.submit(hear, client, read_audio(UTTERANCES[2], 16000), 160)
        with client.open_stream("spoilt") as stream, pytest.raises(StreamError, match=r"spoilt.*3 of 1600 samples"):
            samples = np.zeros(1600, np.float32)
            samples[5:8] = np.nan
            stream.send(samples)
            stream.poll(wait_s=10)
        assert neighbour.result(timeout=60) == expected[2]


def test_a_refused_piece_leaves_its_stream_as_it_was(server: RunningServer, expected):
    samples = read_audio(UTTERANCES[0], 16000)
    replies = []
    client = triton_grpc.InferenceServerClient(server.url("grpc"))
    bad = np.full(800, np.inf, np.float32)
    pieces = [samples[:8000], bad, samples[8000:]]
    for i, piece in enumerate(pieces):
        audio = triton_grpc.InferInput("AUDIO", [1, len(piece)], "FP32")
        audio.set_data_from_numpy(piece[None])
        sequence = {"sequence_id": "resumed", "sequence_start": i == 0, "sequence_end": i == 2}
        try:
            replies.append(client.infer("asr", [audio], **sequence).as_numpy("TEXT")[0, 0].decode())
        except triton_grpc.InferenceServerException as error:
            replies.append(error)
    assert "800 of 800 samples" in str(replies[1])
    assert replies[2] == expected[0].text


def test_unknown_options_are_refused_by_name(server: RunningServer):
    client = triton_grpc.InferenceServerClient(server.url("grpc"))
    audio = triton_grpc.InferInput("AUDIO", [1, 0], "FP32")
    audio.set_data_from_numpy(np.zeros((1, 0), np.float32))
    with pytest.raises(triton_grpc.InferenceServerException, match="'language' is not an option") as refusal:
        client.infer(
            "asr", [audio], sequence_id="optional", sequence_start=True, sequence_end=True,
            parameters={"language": "de"},
        )  # fmt: skip
    assert "INVALID_ARGUMENT" in str(refusal.value.status())


def test_too_much_audio_in_one_request_is_refused(server: RunningServer):
    client = triton_grpc.InferenceServerClient(server.url("grpc"))
    audio = triton_grpc.InferInput("AUDIO", [1, 480001], "FP32")
    audio.set_data_from_numpy(np.zeros((1, 480001), np.float32))
    with pytest.raises(triton_grpc.InferenceServerException, match="480001 samples in one request, at most 480000"):
        client.infer("asr", [audio], sequence_id="long", sequence_start=True, sequence_end=True)


def test_a_full_server_refuses_at_once_and_disturbs_nobody(small_server: RunningServer, expected):
    samples = read_audio(UTTERANCES[0], 16000)
    with Client(small_server.url("grpc")) as client:
        streams = [client.open_stream() for _ in range(small_server.max_streams)]
        for stream in streams:
            stream.send(samples[:20000])
            assert stream.poll(wait_s=10)
        started = time.monotonic()
        with pytest.raises(ServerFullError, match=f"all {small_server.max_streams} stream slots are taken"):
            client.transcribe(samples)
        assert time.monotonic() - started < 2.0
        for stream in streams:
            stream.finish(samples[20000:])
            assert list(stream)[-1].text == expected[0].text
        assert hear(client, samples, 1600) == expected[0]


def test_a_silent_stream_is_expired_and_told_so(small_server: RunningServer, expected):
    with Client(small_server.url("grpc")) as client, client.open_stream("sleeper") as stream:
        stream.send(np.zeros(1600, np.float32))
        assert stream.poll(wait_s=10)
        time.sleep(small_server.idle_s + 0.5)
        stream.send(np.zeros(1600, np.float32))
        with pytest.raises(StreamNotOpenError, match=r"sleeper.*expired after"):
            stream.poll(wait_s=10)


def test_clients_killed_in_mid_stream_give_their_slots_back(small_server: RunningServer, expected):
    command = [sys.executable, "-m", "penstock_client.cli", "--url", small_server.url("grpc"), "--simulate-realtime"]
    clients = [
        subprocess.Popen([*command, *map(str, UTTERANCES)], stdout=subprocess.DEVNULL)  # long enough for all to start
        for _ in range(small_server.max_streams)
    ]
    wait_until_full(small_server, timeout_s=30)
    for client in clients:
        client.kill()
        client.wait(timeout=10)
    wait_until_free(small_server, timeout_s=small_server.idle_s + 5)
    with Client(small_server.url("grpc")) as client, ThreadPoolExecutor(small_server.max_streams) as pool:
        jobs = [
            pool.submit(hear, client, read_audio(UTTERANCES[1], 16000), 1600) for _ in range(small_server.max_streams)
        ]
        for job in jobs:
            assert job.result(timeout=60) == expected[1]
