"""Files through a real server of a tiny offline model: polls, cancellation, many rows in a request, the probe."""

from collections.abc import Iterator

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from penstock import OfflineRecognizer
from penstock.model.bundle import Checkpoint
from penstock.serving.health import probe
from penstock_client.connection import Endpoint
from penstock_client.transport.server_offer import read_server_info
from tests.helpers.golden import golden_samples
from tests.helpers.offline_models import offline_bundle
from trials.server.batched import BatchedConnection
from trials.server.raw_stream import RawStream, Reply
from trials.server.running import RunningServer, running_server

pytestmark = pytest.mark.server
RATE_HZ = 16_000
PART = 30 * RATE_HZ
NO_SAMPLES = np.zeros(0, np.float32)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Checkpoint:
    return offline_bundle(tmp_path_factory.mktemp("offline"), "tdt_hybrid")


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    """195 s."""
    return np.concatenate([golden_samples(name).numpy() for name in ("medium", "short", "long")] * 40)


@pytest.fixture(scope="module")
def offline_server(checkpoint) -> Iterator[RunningServer]:
    settings = {"PENSTOCK_CONTEXT": "", "PENSTOCK_MAX_FILE_MINUTES": "4", "PENSTOCK_MAX_AUDIO_S": "600"}
    yield from running_server(checkpoint.directory, 8, 30.0, settings)


def upload(stream: RawStream, samples: np.ndarray, options: dict | None = None) -> Reply:
    """Sends all of a file; returns the reply to its last request."""
    replies = [
        stream.send(samples[begin : begin + PART], begin == 0, begin + PART >= len(samples), None if begin else options)
        for begin in range(0, len(samples), PART)
    ]
    assert all((one.text, one.is_final, one.processed_s) == ("", False, 0.0) for one in replies[:-1])
    return replies[-1]


def transcribe(url: str, protocol: str, name: str, samples: np.ndarray, options: dict) -> tuple[str, list, list[Reply]]:
    with RawStream(url, name, protocol) as stream:
        replies = [upload(stream, samples, options)]
        while not replies[-1].is_final:
            replies.append(stream.send(NO_SAMPLES))
    return replies[-1].text, [token for one in replies for token in one.tokens], replies


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_files_have_the_tokens_of_the_process(checkpoint, offline_server, speech, protocol):
    recognizer = OfflineRecognizer(checkpoint.directory)
    for size, options in ((len(speech), {}), (50 * RATE_HZ, {"window": "long"}), (160, {"decoder": "ctc"})):
        samples = speech[:size]
        text, tokens, replies = transcribe(offline_server.url(protocol), protocol, f"file {size}", samples, options)
        (expected,) = recognizer.transcribe([samples], options)
        assert (text, tokens) == (expected.text, [token[:2] for token in expected.tokens])
        assert replies[-1].processed_s == np.float32(size / RATE_HZ)
        progress = [one.processed_s for one in replies]
        assert progress == sorted(progress) and progress[-2:-1] != progress[-1:]
        assert size < 1000 or tokens


def test_many_files_in_one_request(checkpoint, offline_server, speech):
    files = [speech[:size] for size in (5 * RATE_HZ, 22 * RATE_HZ, 29 * RATE_HZ)]
    found: dict[int, list] = {row: [] for row in range(len(files))}
    with BatchedConnection(offline_server.url("grpc"), "files") as connection:
        samples, flags = np.concatenate(files), [3] * len(files)
        left = {row: len(file) for row, file in enumerate(files)}
        lengths = dict(left)
        for _ in range(1000):
            rows = np.array([[[row + 1, lengths[row], flags[row], -1] for row in left]], np.int64)
            arrays = {"AUDIO": samples[None], "ROWS": rows, "OPTIONS": np.zeros((1, 0), np.object_)}
            connection.send(arrays)
            reply = connection.receive()
            polled = list(left)
            assert set(reply.as_numpy("ROW")[0].tolist()) == set(range(len(polled)))  # all polls are answered
            outputs = [reply.as_numpy(name)[0].tolist() for name in ("ROW", "TEXT", "IS_FINAL", "AUDIO_PROCESSED")]
            for place, text, is_final, processed_s in zip(*outputs, strict=True):
                row = polled[place]
                found[row].append((text.decode(), is_final, processed_s))
                if is_final and processed_s == len(files[row]) / RATE_HZ:
                    del left[row]
            if not left:
                break
            samples, flags, lengths = NO_SAMPLES, [0] * len(files), dict.fromkeys(left, 0)
    expected = OfflineRecognizer(checkpoint.directory).transcribe(files)
    assert [found[row][-1][0] for row in range(len(files))] == [one.text for one in expected]


def test_a_cancelled_file_is_gone_and_the_probe_goes_on(offline_server, speech):
    with RawStream(offline_server.url("grpc"), "cancelled") as stream:
        upload(stream, speech)
        assert probe(offline_server.url("http"), 60.0).is_healthy
        reply = stream.send(NO_SAMPLES, end=True)
        assert (reply.is_final, reply.processed_s) == (True, np.float32(len(speech) / RATE_HZ))
        with pytest.raises(InferenceServerException, match=r"STREAM_NOT_OPEN: .*was cancelled"):
            stream.send(NO_SAMPLES)
    assert probe(offline_server.url("http"), 60.0, needs_room=True).is_healthy


def test_limits(offline_server, speech):
    with RawStream(offline_server.url("grpc"), "too long") as stream:
        for begin in range(8):
            stream.send(speech[:PART], begin == 0)
        with pytest.raises(
            InferenceServerException, match=r"AUDIO_TOO_LONG: .* 4 min \(--max-file-minutes\)"
        ) as caught:
            stream.send(speech[:1])
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    with RawStream(offline_server.url("grpc"), "1") as one, RawStream(offline_server.url("grpc"), "2") as another:
        for stream in (one, another):
            for begin in range(8):
                stream.send(speech[:PART], begin == 0)
        with RawStream(offline_server.url("grpc"), "3") as third:
            for begin in range(4):
                third.send(speech[:PART], begin == 0)
            with pytest.raises(InferenceServerException, match=r"AUDIO_MEMORY_FULL: .* 600 s \(--max-audio-s\)"):
                third.send(speech[:RATE_HZ])
        assert all(stream.send(NO_SAMPLES).processed_s == 0 for stream in (one, another))  # unharmed
        for stream in (one, another):
            stream.send(NO_SAMPLES, end=True)
            stream.send(NO_SAMPLES, end=True)


def test_the_server_says_that_it_takes_files(offline_server):
    info = read_server_info(Endpoint(offline_server.url("grpc"), "grpc", "asr"))
    assert (info.windows, info.context, info.chunk_ms) == (("file", "long", "live"), None, 0.0)
    assert len(info.fingerprint) == 64 and "chunk_samples" not in info.parameters
