"""Many utterances through a client, with a stand-in for the client: order, failures, a full server, a lost one."""

import threading
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.evaluation import through_server
from penstock.evaluation.manifest import Utterance
from penstock.evaluation.through_server import connect, recognise_through_server
from penstock_client import Segment, ServerFullError, ServerUnreachableError, StreamError, Transcript


class StandIn:
    """Answers each file with its name, `at_once` of them at most; `failures` are raised, each once."""

    def __init__(self, at_once: int = 1000, failures: dict[str, Exception] | None = None):
        self.at_once, self.failures = at_once, dict(failures or {})
        self.live, self.most_live, self.lock = 0, 0, threading.Lock()

    def transcribe(self, audio: str, chunk_ms: float) -> Transcript:
        with self.lock:
            if self.live >= self.at_once:
                raise ServerFullError("s", "all stream slots are taken")
            self.live += 1
            self.most_live = max(self.most_live, self.live)
        try:
            threading.Event().wait(0.005)
            if failure := self.failures.pop(Path(audio).name, None):
                raise failure
            return Transcript([Segment(f"text of {Path(audio).name}")])
        finally:
            with self.lock:
                self.live -= 1


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(through_server, "_RETRY_S", 0.002)


def utterances(count: int) -> list[Utterance]:
    return [Utterance(Path(f"{i}.wav"), 1.0, "", Path("m.jsonl"), i + 1) for i in range(count)]


def test_all_are_recognised_so_many_at_once():
    client = StandIn()
    outcomes = list(recognise_through_server(client, utterances(30), streams=7))
    assert sorted(outcomes) == [(i, f"text of {i}.wav", None) for i in range(30)]
    assert 2 <= client.most_live <= 7


def test_a_full_server_is_waited_for():
    client = StandIn(at_once=2)
    outcomes = list(recognise_through_server(client, utterances(12), streams=6))
    assert sorted(outcome.index for outcome in outcomes if not outcome.error) == list(range(12))


def test_one_that_stays_full_is_not_waited_for_forever(monkeypatch):
    monkeypatch.setattr(through_server, "_FULL_WAIT_S", 0.02)
    (outcome,) = recognise_through_server(StandIn(at_once=0), utterances(1), streams=1)
    assert outcome.error == "0.wav: stream 's': all stream slots are taken"


def test_a_stream_that_fails_is_named_and_the_others_go_on():
    client = StandIn(failures={"3.wav": StreamError("s", "lost its state")})
    outcomes = sorted(recognise_through_server(client, utterances(6), streams=3))
    assert [outcome.index for outcome in outcomes if outcome.error] == [3]
    assert outcomes[3].error == "3.wav: stream 's': lost its state"


def test_a_server_that_is_gone_ends_the_run():
    client = StandIn(failures={f"{i}.wav": ServerUnreachableError("host:1", "refused") for i in range(2, 400)})
    with pytest.raises(PenstockError, match="cannot reach a server at host:1: refused"):
        list(recognise_through_server(client, utterances(400), streams=2))
    assert len(client.failures) > 50, "what had not begun is left"


def test_no_server_at_the_address():
    with pytest.raises(PenstockError, match=r"cannot reach a server at 127\.0\.0\.1:9"):
        connect("127.0.0.1:9")
    with pytest.raises(PenstockError, match=r"--url: url is 'here', expected host:port"):
        connect("here")
