"""Collects the records of all Locust processes in the one that writes the report."""

import logging

import gevent
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadtest.records import Utterance
from penstock.errors import RunError

_UTTERANCES = "penstock_utterances"
_READY = "penstock_ready"
_SEND_EVERY_S = 2.0
_MAX_WAIT_S = 10.0
_MAX_START_S = 60.0
_log = logging.getLogger(__name__)


class Collector:
    """The records of one process: a worker sends them to the master, other processes keep them."""

    def __init__(self, environment: Environment):
        self._runner = environment.runner
        self._utterances: list[Utterance] = []
        self._finished_workers: set[str] = set()
        self._ready_workers: set[str] = set()
        self.lost = ""
        """Why a process that plays streams is gone; empty where none is."""
        self.is_worker = isinstance(self._runner, WorkerRunner)
        """True where another process writes the report."""
        self.is_master = isinstance(self._runner, MasterRunner)
        """True where users run in other processes alone."""
        if self.is_master:
            self._runner.register_message(_UTTERANCES, self._receive)
            self._runner.register_message(_READY, lambda environment, msg, **_: self._ready_workers.add(msg.node_id))
        if self.is_worker:
            gevent.spawn(self._send_periodically)

    def send_ready(self) -> None:
        """Reports to the master that this worker can play; Locust counts a worker as soon as it is connected."""
        if self.is_worker:
            self._runner.send_message(_READY)

    def await_workers(self) -> None:
        """Waits for the workers, so that no window begins before its streams. Raises RunError after a time-out."""
        if not self._have_all(self._ready_workers, _MAX_START_S):
            raise RunError(f"a process of the load generator is not ready after {_MAX_START_S:g} s")

    def clear(self) -> None:
        """Drops the records of the previous test."""
        self._utterances = []
        self._finished_workers = set()

    def add(self, utterance: Utterance) -> None:
        """Keeps the record of an utterance that has ended."""
        self._utterances.append(utterance)

    def send(self, is_last: bool = False) -> None:
        """Sends a worker's records to the master; with `is_last` they are the last of this test."""
        if not self.is_worker or not (self._utterances or is_last):
            return
        messages = [utterance.to_message() for utterance in self._utterances]
        self._utterances = []
        self._runner.send_message(_UTTERANCES, {"utterances": messages, "is_last": is_last, "lost": self.lost})

    def collected(self) -> list[Utterance]:
        """Returns all records of the test that has ended, after a wait for the workers' last ones."""
        if not self._have_all(self._finished_workers, _MAX_WAIT_S):  # for example where a signal ended the test
            _log.warning("the last records of a load generator process are missing: the earlier ones are used")
        return self._utterances

    def _have_all(self, workers: set[str], wait_s: float) -> bool:
        """Whether `workers` holds all that the master knows, within `wait_s`; it drops those that have ended."""
        if not self.is_master:
            return True
        with gevent.Timeout(wait_s, False):
            while not workers.issuperset(self._runner.clients.keys()):
                gevent.sleep(0.05)
            return True
        return False

    def _receive(self, environment: Environment, msg, **_: object) -> None:
        self.lost = self.lost or msg.data["lost"]
        self._utterances += map(Utterance.from_message, msg.data["utterances"])
        if msg.data["is_last"]:
            self._finished_workers.add(msg.node_id)

    def _send_periodically(self) -> None:
        while True:
            gevent.sleep(_SEND_EVERY_S)
            self.send()
