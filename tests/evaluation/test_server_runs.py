"""Runs through a server."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.evaluation.manifest import Utterance
from penstock.evaluation.runs import Outcome
from penstock.evaluation.server_runs import recognize_through_server
from penstock_client import Segment, ServerFullError, ServerUnreachableError, StreamError, StreamOptions, Transcript


class StandIn:
    """Answers each file with its name, at most `max_live` at a time; `failures` are raised, each once."""

    def __init__(self, max_live: int = 1000, failures: dict[str, Exception] | None = None):
        self.max_live, self.failures = max_live, dict(failures or {})
        self.live, self.peak_live, self.lock = 0, 0, threading.Lock()
        self.boosted_phrases: list[object] = []
        self.languages: list[str | None] = []

    def transcribe(self, audio: str, request_ms: float, options: StreamOptions | None = None) -> Transcript:
        with self.lock:
            self.boosted_phrases.append(options and options.boosted_phrases)
            self.languages.append(options and options.language)
            if self.live >= self.max_live:
                raise ServerFullError("s", "all stream slots are taken")
            self.live += 1
            self.peak_live = max(self.peak_live, self.live)
        try:
            threading.Event().wait(0.005)
            if failure := self.failures.pop(Path(audio).name, None):
                raise failure
            return Transcript([Segment(f"text of {Path(audio).name}")])
        finally:
            with self.lock:
                self.live -= 1


def utterances(count: int) -> list[Utterance]:
    return [Utterance(Path(f"{i}.wav"), 1.0, "", Path("m.jsonl"), i + 1) for i in range(count)]


def test_all_utterances_are_recognized_concurrently():
    client = StandIn()
    outcomes = list(recognize_through_server(client, utterances(30), streams=7))
    assert sorted(outcomes) == [Outcome(i, f"text of {i}.wav") for i in range(30)]
    assert 2 <= client.peak_live <= 7


@pytest.mark.parametrize("has_languages", [True, False])
def test_an_utterance_s_language_is_sent_to_a_model_with_a_choice(has_languages):
    client = StandIn()
    first, second = utterances(2)
    list(recognize_through_server(client, [replace(first, language="de-DE"), second], 1, has_languages))
    assert client.languages == ["de-DE" if has_languages else None, None]


def test_an_interrupted_run_does_not_wait_for_its_streams():
    """Streams of a full server wait for a day; the client's end is theirs."""
    is_closed, still_runs = threading.Event(), threading.Event()

    class Waiting(StandIn):
        def transcribe(self, audio: str, request_ms: float, options: StreamOptions | None = None) -> Transcript:
            if audio != "0.wav" and not is_closed.wait(20):
                still_runs.set()
            return Transcript([Segment("a")])

    outcomes = recognize_through_server(Waiting(), utterances(4), streams=4)
    assert next(outcomes).number == 0
    outcomes.close()
    is_closed.set()
    assert not still_runs.is_set()


def test_a_stream_that_fails_is_named_and_the_others_go_on():
    client = StandIn(failures={"3.wav": StreamError("s", "lost its state", "STREAM_LOST")})
    outcomes = sorted(recognize_through_server(client, utterances(6), streams=3))
    assert [outcome.number for outcome in outcomes if outcome.error] == [3]
    assert outcomes[3].error == "STREAM_LOST: 3.wav: stream 's': lost its state"


def test_a_server_that_is_gone_ends_the_run():
    client = StandIn(failures={f"{i}.wav": ServerUnreachableError("host:1", "refused") for i in range(2, 400)})
    with pytest.raises(PenstockError, match="SERVER_FAILED: cannot reach a server at host:1: refused"):
        list(recognize_through_server(client, utterances(400), streams=2))
    assert len(client.failures) > 50, "what had not begun is left"
