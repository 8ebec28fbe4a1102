"""A stream that restarts at its endpoints, request by request: `Session` against replies that are made by hand."""

import numpy as np
import pytest

from penstock_client import ConnectionLostError, StreamOptions
from penstock_client.alignment import ChunkGeometry
from penstock_client.protocol import Request, RequestSplitter, Result, Word
from penstock_client.stream import Stream
from penstock_client.transport.channel import Channel
from penstock_client.transport.replay import Replay
from penstock_client.transport.resuming import ResumingTransport
from penstock_client.transport.session import Session

OPTIONS = StreamOptions(endpoint_silence_ms=400)


def audio(start: int, end: int) -> np.ndarray:
    """Samples whose values are their numbers."""
    return np.arange(start, end, dtype=np.float32)


def result(segment: int, processed_s: float, words: tuple[Word, ...] = (), is_final: bool = False) -> Result:
    text = " ".join(word.text for word in words)
    return Result(segment, text, is_final, processed_s, words, (), ())


class Rig:
    """A session that is connected, and the requests that the server has received."""

    def __init__(self, options: StreamOptions = OPTIONS) -> None:
        self.session = Session("s", "memory", 10.0, lambda: 0.0)
        self.session.connected()
        self.splitter = RequestSplitter("s", parameters=options.parameters(), restarts=options.restarts)

    def send(self, samples: np.ndarray, **flags: bool) -> None:
        for request in self.splitter.split(samples, **flags):
            self.session.enqueue(request, 0.0)

    def received(self) -> list[Request]:
        return list(iter(self.session.next_request, None))

    def results(self) -> list[Result]:
        return [self.session.next_result() for _ in range(len(self.session._results))]


def described(requests: list[Request]) -> list[tuple]:
    """First sample and number of samples, and what ends."""
    found = []
    for request in requests:
        samples = np.frombuffer(request.audio, "<f4")
        ends = "stream" if request.is_end else "segment" if request.is_final else ""
        found.append((int(samples[0]) if len(samples) else None, len(samples), ends))
    return found


def test_what_is_under_way_at_an_endpoint_is_dropped_and_sent_again():
    rig = Rig()
    for start in (0, 8000, 16_000):
        rig.send(audio(start, start + 8000))
    assert described(rig.received()) == [(0, 8000, ""), (8000, 8000, ""), (16_000, 8000, "")]
    rig.send(audio(24_000, 32_000))  # not on its way yet
    rig.session.deliver(result(0, 0.4))
    rig.session.deliver(result(0, 0.8, (Word("yes", 160, 320),), is_final=True), result(1, 0.9))
    border = 16 * (800 - 400)
    assert rig.session.restarted_samples == border
    assert described(rig.received()) == [(None, 0, "segment"), (border, 32_000 - border, "")]
    rig.session.deliver(result(1, 1.2, (Word("lost", 900, 1000),)))
    rig.session.deliver(result(1, 1.5, is_final=True))  # of `finalize`
    rig.session.deliver(result(2, 1.9, (Word("no", 1500 + 240, 1500 + 400),)))
    first, final, newest = rig.results()
    assert [(one.segment, one.text, one.is_final) for one in (first, final, newest)] == [
        (0, "", False),
        (0, "yes", True),
        (1, "no", False),
    ]
    assert newest.new_words == (Word("no", border // 16 + 240, border // 16 + 400),)
    assert newest.audio_processed_s == pytest.approx(border / 16_000 + 0.4)
    assert rig.session.has_room(Request(b"\0" * 4 * 32_000, False, False)), "everything is answered"


def test_the_end_waits_for_all_answers_and_the_callers_ends_are_repeated():
    rig = Rig()
    rig.send(audio(0, 16_000))
    rig.send(audio(16_000, 20_000), finalize=True)
    rig.send(audio(20_000, 24_000), is_end=True)
    assert described(rig.received()) == [(0, 16_000, ""), (16_000, 4000, "segment"), (20_000, 4000, "")]
    rig.session.deliver(result(0, 0.8, (Word("yes", 160, 320),), is_final=True))
    border = 16 * (800 - 400)
    assert described(rig.received()) == [
        (None, 0, "segment"),
        (border, 20_000 - border, "segment"),
        (20_000, 4000, ""),
    ]
    for segment in (1, 1, 2, 3):  # obsolete, obsolete, `finalize`, and the caller's end of a segment
        rig.session.deliver(result(segment, 1.5, is_final=True))
    assert not rig.session.is_complete and described(rig.received()) == []
    rig.session.deliver(result(4, 1.6))
    assert described(rig.received()) == [(None, 0, "stream")]
    rig.session.deliver(result(4, 1.7, is_final=True))
    assert [(one.segment, one.is_final) for one in rig.results()] == [(0, True), (1, True), (2, False), (2, True)]
    assert rig.session.is_complete


def test_what_is_sent_again_may_have_alternatives():
    rig = Rig(StreamOptions(endpoint_silence_ms=400, decoder="alsd", n_best=2))
    rig.send(audio(0, 16_000))
    rig.received()
    rig.session.deliver(result(0, 0.8, (Word("yes", 160, 320),), is_final=True))
    finalize, again = rig.received()
    assert finalize.is_final and again.samples and again.has_alternatives


class _Recorder:
    """A transport that notes what is sent, and chunks that end 700 samples behind a start, and then every 1,000."""

    def __init__(self) -> None:
        self.restarted_samples = 0
        self.sizes: list[int] = []

    def send(self, request: Request) -> None:
        self.sizes.append(request.samples)

    def get(self) -> ChunkGeometry:
        return ChunkGeometry(700, 1000)


def test_chunks_begin_where_an_endpoint_restarts_the_stream():
    recorder = _Recorder()
    stream = Stream("s", recorder, OPTIONS.parameters(), chunks=recorder, restarts=True)
    stream.send(audio(0, 2000))
    assert (recorder.sizes, stream.held_samples) == ([1700], 300)
    recorder.restarted_samples = 1200  # 500 samples of the new segment were sent
    stream.send(audio(2000, 2100))
    assert (recorder.sizes, stream.held_samples) == ([1700, 200], 200)
    stream.send(audio(2100, 3100))
    stream.finalize()
    stream.send(audio(3100, 3800))
    assert (recorder.sizes[2:], stream.held_samples) == ([1000, 200, 700], 0)
    recorder.restarted_samples = 3700
    stream.send(audio(3800, 4400))
    assert (recorder.sizes[5:], stream.held_samples) == ([600], 0)


def test_a_cancelled_stream_that_holds_its_end_is_ended():
    rig = Rig()
    rig.send(audio(0, 16_000), is_end=True)
    assert described(rig.received()) == [(0, 16_000, "")]
    rig.session.cancel()
    assert described(rig.received()) == [(None, 0, "stream")]
    assert rig.session.is_over


def test_audio_under_way_is_limited():
    rig = Rig()
    rig.send(audio(0, 30_000))
    assert rig.session.has_room(Request(b"\0" * 4 * 2000, False, False))
    assert not rig.session.has_room(Request(b"\0" * 4 * 2001, False, False))


def test_soft_segments_are_results_of_their_reply():
    session = Session("s", "memory", 10.0, lambda: 0.0)
    for request in RequestSplitter("s").split(audio(0, 8000), is_end=True):
        session.enqueue(request, 0.0)
    session.next_request()
    session.deliver(result(0, 0.4, is_final=True), result(1, 0.5, is_final=True))
    assert session.next_result() is not None and not session.is_complete
    assert session.next_result() is not None and session.is_complete


def test_a_stream_is_not_resumed_behind_an_endpoint():
    replay = Replay()
    for request in RequestSplitter("s").split(audio(0, 8000)):
        replay.add(request)
    assert replay.take(result(0, 0.4, is_final=True)) == result(0, 0.4, is_final=True)
    assert replay.has_endpoints
    assert replay.take(result(1, 0.5)) == result(1, 0.5)
    for request in RequestSplitter("s").split(audio(0, 8000), is_end=True):
        replay.add(request)
    assert replay.take(result(1, 0.6, is_final=True)) == result(1, 0.6, is_final=True)
    assert replay.restart() == []


class PlayedTransport(Channel):
    """A transport whose server is the test."""

    def __init__(self) -> None:
        super().__init__("s", "memory", 10.0)

    def close(self) -> None:
        self.cancel()

    def take_all(self) -> None:
        with self.update() as session:
            session.connected()
            while session.next_request() is not None:
                pass


@pytest.mark.parametrize("is_received", [True, False])
@pytest.mark.parametrize("flags", [{"is_end": True}, {"finalize": True}], ids=["end", "finalize"])
def test_a_stream_is_not_resumed_behind_an_endpoint_in_its_last_request(flags, is_received):
    """What follows the endpoint is to be sent again: a new stream would miss it, and wait for an answer to nothing."""
    opened: list[PlayedTransport] = []

    def open_transport() -> PlayedTransport:
        opened.append(PlayedTransport())
        return opened[-1]

    transport = ResumingTransport(open_transport, 60.0)
    splitter = RequestSplitter("s", parameters=OPTIONS.parameters(), restarts=True)
    for last in ({}, flags):
        for request in splitter.split(audio(0, 16_000), **last):
            transport.send(request)
        opened[0].take_all()
        if not last:
            with opened[0].update() as session:
                session.deliver(result(0, 0.9))
            transport.receive(0)
    endpoint = result(0, 1.5, (Word("yes", 800, 1000),), is_final=True)
    with opened[0].update() as session:
        session.deliver(endpoint, *([result(1, 2.0, is_final=True)] if "finalize" in flags else []))
    if is_received:
        assert transport.receive(0).text == "yes"
    with opened[0].update() as session:
        session.connection_lost("gone")
    if not is_received:
        assert transport.receive(0).text == "yes"
    with pytest.raises(ConnectionLostError):
        transport.receive(None)
    assert len(opened) == 1
