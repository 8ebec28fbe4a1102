"""Real servers with the bundled checkpoint, started once per process and shared by the tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from client.tests.helpers.event_loop import ANYIO_BACKEND
from penstock.speakers.bundle import SpeakerCheckpoint
from penstock_client import Client
from tests.helpers.golden import golden_utterances
from tests.helpers.recognition import IN_PYTORCH
from trials.server.gateway import RunningGateway
from trials.server.running import RunningServer, running_gateway, running_server

SPEAKER_STREAMS = 3


@pytest.fixture(scope="session")
def server(bundled_model: Path, speaker_bundle: SpeakerCheckpoint) -> Iterator[RunningServer]:
    """More slots than the tests use, and a speaker model."""
    more = {"PENSTOCK_SPEAKERS": str(speaker_bundle.directory), "PENSTOCK_SPEAKER_STREAMS": str(SPEAKER_STREAMS)}
    yield from running_server(bundled_model, max_streams=32, idle_s=30.0, more=more)


@pytest.fixture(scope="session")
def small_server(bundled_model: Path) -> Iterator[RunningServer]:
    """Three streams with an idle timeout of five seconds, within which a busy machine answers a few requests."""
    yield from running_server(bundled_model, max_streams=3, idle_s=5.0, more=IN_PYTORCH)


@pytest.fixture(scope="session")
def gateway(server: RunningServer) -> Iterator[RunningGateway]:
    """A gateway's process before `server`. Segments end with their recording, as those of a direct client."""
    with running_gateway(server) as addresses:
        yield addresses


@pytest.fixture(scope="session")
def direct(server: RunningServer) -> dict[Path, list[tuple[str, int, int]]]:
    """The words of the golden recordings by a direct client, with times in ms."""
    paths = [utterance.path for utterance in golden_utterances()]
    with Client(server.url("grpc"), timeout_s=60) as client:
        return {path: [(w.text, w.start_ms, w.end_ms) for w in client.transcribe(path).words] for path in paths}


@pytest.fixture
def anyio_backend():
    """The loop of the tests that are coroutines."""
    return ANYIO_BACKEND
