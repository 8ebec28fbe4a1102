"""The model `speakers` is loaded again after longer and longer waits, a few times in a row, and not during a stop."""

import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.pipeline.slots.drain import DrainBoard, Phase
from penstock.serving import supervisor
from penstock.serving.settings import SPEAKER_BOARD
from penstock.serving.speaker_restarts import SpeakerRestarts
from penstock.serving.supervisor import MAX_RESTARTS, Backoff


class Server:
    """A server whose speaker model ends when ready; each of `fates` is one load: "ready", or why it fails."""

    ports, loading_secret = SimpleNamespace(grpc=1), "secret"
    process = SimpleNamespace(pid=os.getpid(), poll=lambda: None)

    def __init__(self, runtime: Path, *fates: str):
        self.running = self.log = self
        self.ends, self.url = dict, str
        self.runtime, self.fates, self.failure = SimpleNamespace(path=runtime), list(fates), None
        self.said, self.calls, self.stop = [], [], threading.Event()

    def control(self, restarts: SpeakerRestarts, verb: str) -> str | None:
        self.calls.append(verb)
        self.failure = self.fates.pop(0) if verb == "Load" else "ready"
        if not self.fates and self.failure == "ready":
            restarts._is_over.set()
        return None if self.failure == "ready" else "an error"

    def load_failure(self) -> str | None:
        return self.failure

    def release(self) -> None:
        self.failure = None

    def run(self) -> list[str]:
        SpeakerRestarts(self, Backoff(), lambda text, *_, **fields: self.said.append(text), self.stop)._run()
        return self.said


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Makes a server of these fates."""

    def make(*fates: str) -> Server:
        (tmp_path / "models" / "speakers").mkdir(parents=True)
        server = Server(tmp_path, *fates)
        monkeypatch.setattr(SpeakerRestarts, "_control", lambda restarts, verb: server.control(restarts, verb))
        return server

    monkeypatch.setattr(supervisor, "_FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(supervisor, "_LONGEST_WAIT_S", 0.004)
    return make


def test_it_is_loaded_again_after_each_loss_and_each_failed_load(served):
    again, ended = "words go on without speakers; loading it again in", "model speakers has ended"
    assert served("ready", "no luck", "ready").run() == [
        f"{ended}; {again} 0.001 s",
        "model speakers is ready again",
        f"{ended}; {again} 0.002 s",
        f"no luck; {again} 0.004 s",
        "model speakers is ready again",
    ]


def test_after_many_losses_in_a_row_it_stays_unloaded(served):
    server = served(*["no luck"] * MAX_RESTARTS)
    *_, last = server.run()
    assert last == "no luck; streams have no speakers until the server restarts"
    assert server.calls == ["Unload", *["Load"] * MAX_RESTARTS]


def test_during_a_drain_its_streams_are_forgotten_and_nothing_is_loaded(served):
    server = served()
    board = DrainBoard(2, server.runtime.path / SPEAKER_BOARD)
    board.phase, board.times_ns[0], board.generations[1] = Phase.DRAINING, 5, 6
    server.stop.set()
    assert server.run() == []
    assert (board.phase, board.live_streams(), *board.generations) == (Phase.DRAINING, 0, 0, 0)
    assert server.calls == ["Unload"]


def test_without_its_files_it_is_forgotten_and_stays_unloaded(served):
    server = served("ready")
    board = DrainBoard(2, server.runtime.path / SPEAKER_BOARD)
    board.times_ns[0] = 5
    restarts = SpeakerRestarts(server, Backoff(), lambda text, *_, **fields: server.said.append(text), server.stop)
    shutil.rmtree(server.runtime.path)
    restarts._run()
    assert server.calls == ["Unload"] and not board.live_streams()
    assert server.said[0].endswith("was removed; streams have no speakers until the server restarts")
