"""Collecting the records of several processes, with a stand-in for Locust's master."""

import importlib
from types import ModuleType, SimpleNamespace

import pytest

from penstock.errors import PenstockError

pytest.importorskip("gevent", reason="needs locust (extra `loadtest`)")


class Master:
    """Master of two workers; like Locust's, it drops one that has stopped."""

    def __init__(self):
        self.clients = {"a": None, "b": None}
        self.receive = {}

    def register_message(self, name, listener):
        self.receive[name] = listener


@pytest.fixture
def collector(monkeypatch) -> ModuleType:
    """The module. Locust must not put gevent in the place of this process's sockets and threads."""
    monkeypatch.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    return importlib.import_module("loadtest.load_test")


@pytest.fixture
def master(collector, monkeypatch) -> Master:
    monkeypatch.setattr(collector, "MasterRunner", Master)
    monkeypatch.setattr(collector, "_MAX_WAIT_S", 0.2)
    monkeypatch.setattr(collector, "_MAX_START_S", 0.2)
    return Master()


def send_last(master: Master, node: str) -> None:
    data = {"utterances": [], "is_last": True, "lost": ""}
    master.receive["penstock_utterances"](None, SimpleNamespace(data=data, node_id=node))


def test_it_waits_for_a_worker_although_another_is_dropped(collector, master, monkeypatch):
    collected = collector.Collector(SimpleNamespace(runner=master))
    send_last(master, "a")
    del master.clients["a"]
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            send_last(master, "b")

    monkeypatch.setattr(collector.gevent, "sleep", sleep)
    assert collected.collected() == []
    assert len(waits) == 3


def test_a_worker_that_does_not_send_its_last_records_is_reported(collector, master, caplog):
    collected = collector.Collector(SimpleNamespace(runner=master))
    send_last(master, "a")
    assert collected.collected() == []
    assert "last records of a load generator process are missing" in caplog.text and not collected.lost


def test_a_worker_that_does_not_get_ready_ends_the_test(collector, master):
    collected = collector.Collector(SimpleNamespace(runner=master))
    for node in "ab":
        with pytest.raises(PenstockError, match=r"not ready after 0\.2 s"):
            collected.await_workers()
        master.receive["penstock_ready"](None, SimpleNamespace(node_id=node))
    collected.await_workers()
