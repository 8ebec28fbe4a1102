"""Fault trials whose culprit is the line to the server. Each returns what it measured and raises AssertionError."""

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from tritonclient.utils import InferenceServerException

from tests.server.cable import Cable
from tests.server.conftest import RunningServer
from tests.server.history import History, Ledger, Spoken
from tests.server.raw_stream import RawStream, Reply
from tests.server.resources import Figures, read_metrics
from tests.server.trials_of_streams import SPARE_STREAMS, wait_until_expired
from tests.server.voices import NO_SAMPLES, PIECE_SAMPLES, Voice, neighbours, refused

_LOST = ("START flag", "was lost by a later stage", "no longer holds this stream")
"""How a stream is refused of which a request never came out: Triton dropped it between two members."""


def cut_networks(server: RunningServer, voices: list[Voice], count: int) -> Figures:
    """The line is cut between two requests: whoever comes back in time, on a new connection, goes on where he was."""
    ledger = Ledger()
    with neighbours(server, voices, count=1) as nearby:
        for number in range(count):
            voice, middle = voices[number % len(voices)], len(voices[0].samples) // 2
            history = ledger.open(f"cut-{number}", voice.spoken)
            with Cable(server.ports.grpc) as cable, RawStream(cable.url, history.name, timeout_s=2) as stream:
                history.replies.append(stream.send(voice.samples[:middle], start=True))
                cable.cut()
                refused(lambda stream=stream: stream.send(NO_SAMPLES))
            with RawStream(server.url("grpc"), history.name) as again:
                history.replies.append(again.send(voice.samples[middle:], end=True))
    ledger.check()
    return {"streams": count, "neighbours": nearby.whole}


def silent_networks(server: RunningServer, voices: list[Voice], count: int) -> Figures:
    """Lines fall silent in mid-stream, all sockets open: the client's request times out, the stream is expired."""
    timeout_s, silent, told_s, freed_s = 1.0, 0, [], []
    with neighbours(server, voices, count=1) as nearby:
        while silent < count:
            some = min(max(1, server.max_streams - SPARE_STREAMS), count - silent)
            expired = read_metrics(server)["streams_expired_total"]
            names = [f"silent-{silent + i}" for i in range(some)]
            with _held_lines(server, voices, names, timeout_s) as streams, ThreadPoolExecutor(some) as pool:
                silent_since = time.monotonic()
                told_s += pool.map(_time_until_told, streams)
                freed_s.append(wait_until_expired(server, expired + some, silent_since))
            silent += some
    assert timeout_s <= min(told_s) and max(told_s) < timeout_s + 1.0, told_s
    assert max(freed_s) < 1.0, freed_s
    return {
        "clients": silent,
        "told_s_max": max(told_s),
        "freed_after_detection_s_max": max(freed_s),
        "neighbours": nearby.whole,
    }


@contextmanager
def _held_lines(
    server: RunningServer, voices: list[Voice], names: list[str], timeout_s: float
) -> Iterator[list[RawStream]]:
    """Streams that have begun, each on a line of its own that has fallen silent since."""
    with ExitStack() as stack:
        cables = [stack.enter_context(Cable(server.ports.grpc)) for _ in names]
        streams = [
            stack.enter_context(RawStream(cable.url, name, timeout_s=timeout_s))
            for cable, name in zip(cables, names, strict=True)
        ]
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(lambda stream: stream.send(voices[0].samples[:PIECE_SAMPLES], start=True), streams))
        for cable in cables:
            cable.hold()
        yield streams


def _time_until_told(stream: RawStream) -> float:
    """Seconds until a request on a silent line is given up by its client, by a clear error."""
    started = time.monotonic()
    told = refused(lambda: stream.send(NO_SAMPLES))
    assert "Deadline Exceeded" in told, told
    return time.monotonic() - started


def cut_requests(server: RunningServer, voices: list[Voice], count: int) -> Figures:
    """The line is cut with a request in flight: its client gets an error, and looks after its stream elsewhere.

    A third of the requests is lost on the way there for certain, of another third only the replies, and of the rest
    nobody knows how far they came. Words may be missing then; none is told twice.
    """
    chance, outcomes = random.Random(count), Counter()
    with neighbours(server, voices, count=1) as nearby:
        for number in range(count):
            cut = (_cut_on_the_way, _cut_on_the_way_back, _cut_somewhere)[number % 3]
            cut(server, voices[number % len(voices)], f"in-flight-{number}", chance.uniform(0, 0.15), outcomes)
    return dict(outcomes) | {"neighbours": nearby.whole}


def _cut_in_flight(
    server: RunningServer, voice: Voice, name: str, hold: Callable[[Cable], None], wait: Callable[[], object]
) -> tuple[list[Reply], str | None]:
    """A stream whose line is cut behind the request with its second half, after `wait`: its replies and the error."""
    middle = len(voice.samples) // 2
    with (
        Cable(server.ports.grpc) as cable,
        RawStream(cable.url, name, timeout_s=20) as stream,
        ThreadPoolExecutor(1) as pool,
    ):
        replies = [stream.send(voice.samples[:middle], start=True)]
        hold(cable)
        sending = pool.submit(stream.send, voice.samples[middle:])
        wait()
        cable.cut()
        try:
            return [*replies, sending.result(timeout=5)], None
        except InferenceServerException as error:
            assert "UNAVAILABLE" in str(error), error
            return replies, str(error)


def _cut_on_the_way(server: RunningServer, voice: Voice, name: str, pause_s: float, outcomes: Counter) -> None:
    """Sent again, the request is taken once."""
    replies, error = _cut_in_flight(server, voice, name, Cable.hold, lambda: time.sleep(pause_s))
    assert error
    with RawStream(server.url("grpc"), name) as again:
        replies.append(again.send(voice.samples[len(voice.samples) // 2 :], end=True))
    problems = History(name, voice.spoken, replies).problems()
    assert not problems, problems
    outcomes["sent_again"] += 1


def _cut_on_the_way_back(server: RunningServer, voice: Voice, name: str, pause_s: float, outcomes: Counter) -> None:
    """What the lost reply said is not told again; all the rest is."""

    def wait() -> None:
        time.sleep(0.1 + pause_s)
        _say_half(server, voice, f"{name}-behind")  # came later and has been answered

    replies, error = _cut_in_flight(server, voice, name, lambda cable: cable.hold(replies_only=True), wait)
    assert error
    with RawStream(server.url("grpc"), name) as again:
        replies.append(again.send(NO_SAMPLES, end=True))
    assert replies[-1].text == voice.spoken.text, (replies, voice.spoken)
    _check_once(replies, voice.spoken, may_miss=True)
    outcomes["reply_lost"] += 1


def _cut_somewhere(server: RunningServer, voice: Voice, name: str, pause_s: float, outcomes: Counter) -> None:
    """It was carried out or not, or the stream is lost; there is no other way."""
    half = _say_half(server, voice, f"{name}-half")
    replies, error = _cut_in_flight(server, voice, name, lambda _: None, lambda: time.sleep(pause_s))
    with RawStream(server.url("grpc"), name) as again:
        try:
            replies.append(again.send(NO_SAMPLES, end=True))
        except InferenceServerException as refusal:
            assert error and any(words in str(refusal) for words in _LOST), refusal
            problems = History(name, voice.spoken, replies, str(refusal)).problems()
            assert not problems, problems
            outcomes["stream_lost"] += 1
            return
    has_arrived = replies[-1].processed_s > half.processed_s
    spoken = voice.spoken if has_arrived else Spoken(half.text, half.words, half.tokens)
    assert replies[-1].text == spoken.text, (error, replies, spoken)
    _check_once(replies, spoken, may_miss=has_arrived and error is not None)
    outcomes["answered" if error is None else "reply_lost" if has_arrived else "not_arrived"] += 1


def _say_half(server: RunningServer, voice: Voice, name: str) -> Reply:
    """The reply to the first half of a voice."""
    with RawStream(server.url("grpc"), name) as stream:
        return stream.send(voice.samples[: len(voice.samples) // 2], start=True, end=True)


def _check_once(replies: list[Reply], spoken: Spoken, may_miss: bool) -> None:
    """The replies tell each word once, in order; may_miss: one before the last has not come."""
    for what in ("words", "tokens"):
        *first, last = (getattr(reply, what) for reply in replies)
        first, expected = tuple(itertools.chain(*first)), getattr(spoken, what)
        missed = len(expected) - len(first) - len(last)
        told = f"{what} {first} and then {last}, expected {expected}"
        assert missed >= 0 if may_miss else missed == 0, told
        assert first + last == expected[: len(first)] + expected[len(expected) - len(last) :], told
