"""Brings the notes of all of Locust's processes together in the one that writes the report."""

import logging

import gevent
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadtest.records import Utterance
from penstock.errors import PenstockError

_MESSAGE = "penstock_utterances"
_READY = "penstock_ready"
_SEND_EVERY_S = 2.0
_LONGEST_WAIT_S = 10.0
_LONGEST_START_S = 60.0
_log = logging.getLogger(__name__)


class Gathering:
    """The notes of one process: a worker sends them on, the others keep them."""

    def __init__(self, environment: Environment):
        self._runner = environment.runner
        self._utterances: list[Utterance] = []
        self._finished_workers: set[str] = set()
        self._ready_workers: set[str] = set()
        self.lost = ""
        """Why a process that plays streams is gone; empty where none is."""
        if isinstance(self._runner, MasterRunner):
            self._runner.register_message(_MESSAGE, self._take_in)
            self._runner.register_message(_READY, self._note_ready)
        if isinstance(self._runner, WorkerRunner):
            gevent.spawn(self._send_again_and_again)

    @property
    def is_worker(self) -> bool:
        """True where another process writes the report."""
        return isinstance(self._runner, WorkerRunner)

    @property
    def generates_load(self) -> bool:
        """True where users run in this process."""
        return not isinstance(self._runner, MasterRunner)

    def report_ready(self) -> None:
        """A worker tells the master that it can play: Locust counts it in as soon as it is connected."""
        if self.is_worker:
            self._runner.send_message(_READY)

    def await_workers(self) -> None:
        """The master waits for all of them, so that its windows do not begin before their streams. PenstockError where
        one does not get ready.
        """
        if not self._have_all(self._ready_workers, _LONGEST_START_S):
            raise PenstockError(f"a process of the load generator is not ready after {_LONGEST_START_S:g} s")

    def clear(self) -> None:
        """Forgets what came before, at a test's start."""
        self._utterances = []
        self._finished_workers = set()

    def add(self, utterance: Utterance) -> None:
        """Keeps the notes of an utterance that has ended."""
        self._utterances.append(utterance)

    def send(self, is_last: bool = False) -> None:
        """A worker's notes to the master; with `is_last` nothing more comes of this test."""
        if not self.is_worker or not (self._utterances or is_last):
            return
        going, self._utterances = self._utterances, []
        messages = [utterance.to_message() for utterance in going]
        self._runner.send_message(_MESSAGE, {"utterances": messages, "is_last": is_last, "lost": self.lost})

    def gathered(self) -> list[Utterance]:
        """All notes of the test that has ended; waits for workers that have not sent their last ones yet."""
        if not self._have_all(self._finished_workers, _LONGEST_WAIT_S):  # as where the test is ended by a signal
            _log.warning("no last notes of a process of the load generator: what it sent before counts")
        return self._utterances

    def _have_all(self, workers: set[str], wait_s: float) -> bool:
        """Whether all that the master knows are among `workers`, within `wait_s`; it forgets those that have ended."""
        if isinstance(self._runner, MasterRunner):
            with gevent.Timeout(wait_s, False):
                while not workers.issuperset(self._runner.clients.keys()):
                    gevent.sleep(0.05)
                return True
            return False
        return True

    def _take_in(self, environment: Environment, msg, **_: object) -> None:
        self.lost = self.lost or msg.data["lost"]
        self._utterances += map(Utterance.from_message, msg.data["utterances"])
        if msg.data["is_last"]:
            self._finished_workers.add(msg.node_id)

    def _note_ready(self, environment: Environment, msg, **_: object) -> None:
        self._ready_workers.add(msg.node_id)

    def _send_again_and_again(self) -> None:
        while True:
            gevent.sleep(_SEND_EVERY_S)
            self.send()
