"""A server of `asr_batch` on a real socket, with a fake recognizer."""

import pytest

from client.tests.helpers.batched_client import GEOMETRY
from client.tests.helpers.fake_servers import GrpcServer
from client.tests.helpers.fakes import FakeRecognizer


@pytest.fixture
def recognizer():
    recognizer = FakeRecognizer(max_streams=64)
    recognizer.server_parameters |= GEOMETRY
    return recognizer


@pytest.fixture
def server(recognizer):
    server = GrpcServer(recognizer)
    yield server
    server.close()
