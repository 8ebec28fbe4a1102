"""The model `speakers` is loaded again after longer and longer waits, a few times in a row, and not during a stop."""

import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.pipeline.slots.drain import DrainBoard, Phase
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.serving import supervisor
from penstock.serving.settings import DRAIN_BOARD, LEDGER
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


@pytest.fixture
def table(tmp_path) -> tuple[DrainBoard, SlotLedger]:
    """Slots of a server: one stream with speakers is open, one closed, and one is over; one is open without any."""
    board, ledger = DrainBoard(4, tmp_path / DRAIN_BOARD), SlotLedger(4, tmp_path / LEDGER)
    for slot, (time_ns, has_speakers) in enumerate(((5, 1), (-5, 1), (0, 1), (5, 0))):
        board.times_ns[slot], board.has_speakers[slot], board.generations[slot] = time_ns, has_speakers, 6 + slot
    return board, ledger


def test_its_streams_end_and_during_a_drain_nothing_is_loaded(served, table):
    board, ledger = table
    server, board.phase = served(), Phase.DRAINING
    server.stop.set()
    assert server.run() == []
    assert ledger.failed_generations().tolist() == ledger.dropped_generations().tolist() == [6, 7, 0, 0]
    assert (board.phase, server.calls) == (Phase.DRAINING, ["Unload"])


def test_without_its_files_streams_end_and_it_stays_unloaded(served, table):
    server, (_, ledger) = served("ready"), table
    restarts = SpeakerRestarts(server, Backoff(), lambda text, *_, **fields: server.said.append(text), server.stop)
    shutil.rmtree(server.runtime.path)
    restarts._run()
    assert server.calls == ["Unload"] and ledger.failed_generations().any()
    assert server.said[0].endswith("was removed; streams have no speakers until the server restarts")
