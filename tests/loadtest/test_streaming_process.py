"""Orders over a socket, carried out against a fake server on a real port; and a process that is lost."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import soundfile

msgpack = pytest.importorskip("msgpack", reason="needs locust (extra `loadtest`)")

from client.tests.helpers.fake_batch_server import BatchServer  # noqa: E402
from client.tests.helpers.fake_servers import GrpcServer  # noqa: E402
from client.tests.helpers.fakes import FakeRecognizer, expected  # noqa: E402
from loadtest.options import ROOT  # noqa: E402
from loadtest.player import COMPLETE, CUT_SHORT, Utterance  # noqa: E402
from loadtest.streaming_process import serve  # noqa: E402
from penstock_client import StreamOptions  # noqa: E402

SAMPLES = np.random.default_rng(0).normal(0, 0.1, 4000).astype(np.float32)  # 0.25 s
OPTIONS = {
    **dict.fromkeys(StreamOptions.model_fields),
    **{"protocol": "grpc", "target": "direct", "no_align": False, "reply_timeout": 5.0, "request_ms": 100.0},
    **{"seed": 0, "decoder": "greedy", "boost_phrase": [], "boost_every": 1},
}


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """A manifest of one short recording."""
    soundfile.write(tmp_path / "a.wav", SAMPLES, 16_000, subtype="FLOAT")
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text(json.dumps({"audio_filepath": "a.wav", "duration": 0.25, "text": "ada"}) + "\n")
    return manifest


@pytest.fixture
def recognizer() -> FakeRecognizer:
    return FakeRecognizer()


@pytest.fixture
def options(recognizer: FakeRecognizer, recordings: Path) -> Iterator[dict]:
    server = GrpcServer(recognizer)
    yield OPTIONS | {"url": f"127.0.0.1:{server.port}", "recordings": str(recordings)}
    server.close()


@pytest.fixture
def batched_options(recognizer: FakeRecognizer, recordings: Path) -> Iterator[dict]:
    """Chunks of 1000 samples and of 2000."""
    recognizer.server_parameters |= {"first_chunk_samples": "1000", "chunk_samples": "2000"}
    server = BatchServer(recognizer)
    yield OPTIONS | {"url": f"127.0.0.1:{server.port}", "recordings": str(recordings), "target": "batched"}
    server.close()


class Locust:
    """The other end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.messages: list[list] = []
        self._reader = reader
        self._writer = writer
        self._unpacker = msgpack.Unpacker()

    def order(self, *words: object) -> None:
        self._writer.write(msgpack.packb(words))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Takes messages in until the condition is met."""
        while not condition():
            self._unpacker.feed(await asyncio.wait_for(self._reader.read(1 << 16), 10))
            self.messages += self._unpacker

    async def until_closed(self) -> None:
        """Takes messages in until the other side closes the socket."""
        while received := await asyncio.wait_for(self._reader.read(1 << 16), 10):
            self._unpacker.feed(received)
            self.messages += self._unpacker

    async def ask(self, *words: object, answer: list) -> None:
        """Gives an order and waits for its answer."""
        self.order(*words)
        await self.until(lambda: answer in self.messages)

    def utterances(self) -> list[Utterance]:
        return [Utterance.from_message(message[1]) for message in self.messages if message[0] == "utterance"]

    def outcomes(self) -> set[str]:
        return {utterance.outcome for utterance in self.utterances()}

    def leave(self) -> None:
        self._writer.close()


def play(scenario) -> None:
    """Runs the scenario beside `serve`, which has to return when the scenario has left."""

    async def both() -> None:
        near, far = socket.socketpair()
        serving = asyncio.create_task(serve(far))
        locust = Locust(*await asyncio.open_connection(sock=near))
        await scenario(locust)
        locust.leave()
        await asyncio.wait_for(serving, 5)

    asyncio.run(both())


@pytest.mark.parametrize(
    ("target", "parts_s"), [("options", [0.1, 0.1, 0.05]), ("batched_options", [0.0625, 0.125, 0.0625])]
)
def test_a_user_plays_until_it_is_stopped(target, parts_s, recognizer, request):
    async def scenario(locust: Locust) -> None:
        await locust.ask("prepare", request.getfixturevalue(target), 0, answer=["prepared", ""])
        locust.order("begin", 1, 0.0)
        await locust.until(lambda: len(locust.utterances()) == 2)
        await locust.ask("end", 1, answer=["ended", 1])
        assert locust.messages[-1] == ["ended", 1]  # after all its records
        await locust.ask("close", answer=["closed"])

        assert locust.outcomes() <= {COMPLETE, CUT_SHORT}
        whole, following = locust.utterances()[:2]
        assert (whole.outcome, whole.recording, whole.text) == (COMPLETE, 0, expected(SAMPLES).text)
        assert whole.requests["audio_s"] == pytest.approx(parts_s)
        assert whole.requests["is_last"].tolist() == [False, False, True]
        assert (whole.requests["answered_s"] > whole.requests["sent_s"]).all()
        assert (whole.requests["sent_s"] >= whole.requests["deadline_s"]).all()
        assert following.requests["deadline_s"][0] - whole.requests["deadline_s"][0] == pytest.approx(0.25, abs=1e-5)

    play(scenario)
    assert recognizer.received == {}  # every stream was ended


def test_every_second_user_boosts(options, recognizer):
    options = options | {"boost_phrase": ["ada:3"], "boost_every": 2}

    async def scenario(locust: Locust) -> None:
        await locust.ask("prepare", options, 0, answer=["prepared", ""])
        for user in (1, 2):
            wanted = len(locust.utterances()) + 2
            locust.order("begin", user, 0.0)
            await locust.until(lambda wanted=wanted: len(locust.utterances()) >= wanted)
            await locust.ask("end", user, answer=["ended", user])

    play(scenario)
    starts = [request.parameters for request in recognizer.requests if request.is_start]
    is_boosted = ["boosted_phrases" in parameters for parameters in starts]
    assert is_boosted == sorted(is_boosted) and set(is_boosted) == {False, True}  # user 1's, then user 2's
    assert all(parameters["decoder"] == "greedy" for parameters in starts)


def test_abandoned_users_end_with_their_test(options, recognizer):
    recognizer.before_answer = lambda request: time.sleep(0.2)  # far behind: it could not be waited for

    async def scenario(locust: Locust) -> None:
        await locust.ask("prepare", options, 0, answer=["prepared", ""])
        locust.order("begin", 1, 0.0)
        await asyncio.sleep(0.4)
        await locust.ask("prepare", options | {"seed": 1}, 0, answer=["prepared", ""])
        locust.order("begin", 1, 1000.0)
        await locust.ask("close", answer=["closed"])
        assert [message for message in locust.messages if message[0] == "ended"] == [["ended", 1]] * 2

    play(scenario)


def test_an_internal_error_ends_it_and_is_reported(options, monkeypatch):
    async def play_nothing(*_: object) -> None:
        raise ZeroDivisionError("a fault of the player's")

    monkeypatch.setattr("loadtest.player.Player.play", play_nothing)

    async def scenario(locust: Locust) -> None:
        await locust.ask("prepare", options, 0, answer=["prepared", ""])
        locust.order("begin", 1, 0.0)
        await locust.until_closed()
        assert ["ended", 1] not in locust.messages

    with pytest.raises(ZeroDivisionError, match="player's"):
        play(scenario)


_LOSING_IT = """
import gevent.monkey
gevent.monkey.patch_all()
import argparse, json, sys
from loadtest.streaming_handle import StreamingHandle
from penstock.errors import PenstockError

lost = []
handle = StreamingHandle(print, lost.append)
options = argparse.Namespace(**json.loads(sys.argv[1]))
handle.prepare(options, 0)
user = handle.begin_user(1000.0)
handle._process.kill()
handle.end_user(user)
handle.close()
try:
    handle.prepare(options, 0)
except PenstockError as error:
    assert lost == [error.message], lost
    print(error)
"""


@pytest.mark.skipif(find_spec("gevent") is None, reason="needs gevent (extra `loadtest`)")
def test_a_process_that_is_lost_blocks_no_caller(options):
    """In a process of its own, whose sockets gevent may patch."""
    command = [sys.executable, "-c", _LOSING_IT, json.dumps(options)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (
        0,
        "RUN_FAILED: the process that plays the streams has ended; its messages are above\n",
    )
