"""How the notes of several processes come together, with a stand-in for Locust's master."""

import importlib
from types import ModuleType, SimpleNamespace

import pytest

from penstock.errors import PenstockError

pytest.importorskip("gevent", reason="needs locust (extra `loadtest`)")


class Master:
    """Of two workers; as Locust's, it forgets one that has stopped."""

    def __init__(self):
        self.clients = {"a": None, "b": None}
        self.receive = {}

    def register_message(self, name, listener):
        self.receive[name] = listener


@pytest.fixture
def gathering(monkeypatch) -> ModuleType:
    """The module. Locust must not put gevent in the place of this process's sockets and threads."""
    monkeypatch.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    return importlib.import_module("loadtest.gathering")


@pytest.fixture
def master(gathering, monkeypatch) -> Master:
    monkeypatch.setattr(gathering, "MasterRunner", Master)
    monkeypatch.setattr(gathering, "_LONGEST_WAIT_S", 0.2)
    monkeypatch.setattr(gathering, "_LONGEST_START_S", 0.2)
    return Master()


def tell_last(master: Master, node: str) -> None:
    data = {"utterances": [], "is_last": True, "lost": ""}
    master.receive["penstock_utterances"](None, SimpleNamespace(data=data, node_id=node))


def test_it_waits_for_a_worker_although_another_is_forgotten(gathering, master, monkeypatch):
    gathered = gathering.Gathering(SimpleNamespace(runner=master))
    tell_last(master, "a")
    del master.clients["a"]
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            tell_last(master, "b")

    monkeypatch.setattr(gathering.gevent, "sleep", sleep)
    assert gathered.gathered() == []
    assert len(waits) == 3


def test_a_worker_that_keeps_its_last_notes_is_told_and_waited_for_no_longer(gathering, master, caplog):
    gathered = gathering.Gathering(SimpleNamespace(runner=master))
    tell_last(master, "a")
    assert gathered.gathered() == []
    assert "no last notes of a process" in caplog.text and not gathered.lost


def test_a_worker_that_does_not_get_ready_ends_the_test(gathering, master):
    gathered = gathering.Gathering(SimpleNamespace(runner=master))
    for node in "ab":
        with pytest.raises(PenstockError, match=r"not ready after 0\.2 s"):
            gathered.await_workers()
        master.receive["penstock_ready"](None, SimpleNamespace(node_id=node))
    gathered.await_workers()
