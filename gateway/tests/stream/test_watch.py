"""A stream's age, silence and keep-alive, without waiting for them."""

import asyncio
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from client.tests.helpers.event_loop import until
from client.tests.helpers.fake_fleet import speech
from client.tests.helpers.fakes import word
from gateway.tests.helpers.stream_calls import events_of, opened
from penstock_gateway import limits
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.limits import MAX_SILENT_S
from penstock_gateway.security.keys import ANONYMOUS, ApiKey
from penstock_gateway.stream import activity, replica_streams
from penstock_gateway.stream.admission import Admission
from penstock_gateway.stream.events import Final
from penstock_gateway.stream.options import LiveStreamOptions

KEEP_ALIVE_S = 10.0


async def ended(stream):
    """The text of a stream that a limit has ended, and the code after it."""
    text = []
    with pytest.raises(GatewayError) as caught:
        async for event in stream.events():
            text += [event.text] if isinstance(event, Final) else []
    return " ".join(text), caught.value.code


async def mute(stream):
    """70 s without audio: returns when its slot is given back."""
    while not stream._upstream.is_parked:
        await stream.watch(time.monotonic() + 70)
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_drain_of_the_gateway_ends_a_parked_stream_with_its_text(fleet, open_streams, goes_on):
    """The stream's audio may go on in the time of the drain."""
    async with open_streams(fleet()) as streams:
        stream = await opened(streams)
        await stream.push(speech(1, 2))
        await mute(stream)
        streams.drain()
        if goes_on:
            await stream.push(speech(3))
        await streams.finish()
        text, code = await ended(stream)
        assert (text.split(), code) == (["w1", "w2", *["w3"] * goes_on], GatewayCode.STREAM_LOST)
    assert streams.live == 0


@pytest.mark.parametrize("options", [{}, {"endpoint_silence_ms": 0}, {"is_file": True}])
async def test_a_segment_ends_a_second_after_its_pause(fleet, open_streams, monkeypatch, options):
    """Ends only if no message comes, and no answer is on its way; once."""
    now_s = 0.0
    monkeypatch.setattr(activity, "time", SimpleNamespace(monotonic=lambda: now_s))
    async with open_streams(fleet()) as streams:
        monkeypatch.setattr(limits, "LATE_S", 1.0)
        stream, ended = await opened(streams, **options), []
        streams._tasks[-1].cancel()  # it has another clock
        for words, seconds in (((1, 2), 1.7), ((), 1.7), ((), 1.9), ((3,), 1.7), ((), 1.9)):
            await stream.push(speech(*words))
            rows, now_s = stream._upstream.rows, now_s + seconds
            for _ in range(3):
                await stream.watch(now_s)
                await until(lambda: stream._upstream.is_answered)
            ended.append(stream._upstream.rows - rows)
        await stream.finish()
        texts = [(event.text, event.forced) async for event in stream.events() if isinstance(event, Final)]
    segments = ["w1 w2 w3"] if options else ["w1 w2", "w3", ""]
    assert (ended, texts) == ([0, 0, not options, 0, not options], [(text, False) for text in segments])


@pytest.mark.parametrize("silence_ms", [800, 0])
async def test_a_silent_stream_gives_its_slot_back_and_takes_it_again(fleet, open_streams, metrics, silence_ms):
    """A call of 3 minutes with 70 s of mute: every word once, with one slot. `silence_ms` 0: one segment."""
    only = fleet(max_streams=1)
    async with open_streams(only) as streams:
        stream = await opened(streams, endpoint_silence_ms=silence_ms)
        reading = asyncio.create_task(events_of(stream))
        (replica,) = streams._groups[0].replicas
        for pause in range(3):
            await stream.push(speech(3 * pause + 1, 3 * pause + 2, 3 * pause + 3))
            await until(lambda: stream._upstream.is_answered)
            await mute(stream)
            await until(lambda: not only.batch.streams and replica.has_room)
            if pause == 1:  # another stream may take the slot, and one without audio asks for none
                other = await opened(streams)
                await stream.watch(time.monotonic() + 80)
                await stream.push(np.zeros(0, np.float32))
                await stream.end_segment()
                await other.cancel()
                await until(lambda: not only.batch.streams and replica.has_room)
        assert (replica.live, streams.live) == (0, 1)
        await stream.finish()
        events = await reading
        assert events[-1].is_last and streams.live == 0
    finals = [event for event in events if isinstance(event, Final)]
    assert " ".join(final.text for final in finals if final.text) == " ".join(f"w{i}" for i in range(1, 10))
    words = [word for final in finals for word in final.words]
    assert [each.start_ms for each in words] == [50 * i for i in range(9)]
    assert [final.forced for final in finals].count(True) == 1
    assert [final.segment for final in finals] == list(range(len(finals)))
    if not silence_ms:
        assert [final.text for final in finals] == ["w1 w2 w3 w4 w5 w6", "w7 w8 w9"]


async def test_a_stream_that_has_given_its_slot_back_counts_for_its_key_with_its_next_audio(fleet, open_streams):
    """The stream counts as soon as the key has room."""
    key, admission = ApiKey("shop", 1), Admission()
    async with open_streams(fleet(), admission=admission) as streams:
        muted = await opened(streams, key)
        await mute(muted)
        await until(lambda: not admission._keys[key.name].streams)
        other = await opened(streams, key)
        await muted.push(speech(3, 4))
        assert not list(muted._targets())
        await other.cancel()
        await until(lambda: muted._replica)
        assert admission._keys[key.name].streams == 1
        await muted.finish()
        assert [event.text async for event in muted.events()][-1] == "w3 w4"
        assert admission._keys[key.name].streams == 0


async def test_a_process_that_was_stopped_finds_no_client_silent(server, open_streams, monkeypatch):
    """The process's clock jumps by more than the limit of silence."""
    jump_s, looks = 0.0, []

    def monotonic():
        looks.append(jump_s)
        return time.monotonic() + jump_s

    for module in (activity, replica_streams):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(limits, "TICK_S", 0.01)
    async with open_streams(server) as streams:
        stream = await opened(streams)
        jump_s = 10 * MAX_SILENT_S
        await until(lambda: looks.count(jump_s) > 10)
        await stream.push(np.ones(800, np.float32))
        await stream.finish()
        assert (await events_of(stream))[-1].is_last


async def test_a_push_without_samples_is_not_silence_and_sends_nothing(server, open_streams, monkeypatch):
    now_s = 0.0
    monkeypatch.setattr(activity, "time", SimpleNamespace(monotonic=lambda: now_s))
    async with open_streams(server) as streams:
        stream = await opened(streams)
        now_s, rows = MAX_SILENT_S, stream._upstream.rows
        await stream.push(np.zeros(0, np.float32))
        assert stream._upstream.rows == rows
        await stream.watch(now_s + MAX_SILENT_S)
        await stream.finish()
        assert [event.is_last async for event in stream.events()] == [True]


@pytest.mark.parametrize("window", [None, "live"])
async def test_pushes_without_samples_do_not_keep_a_file_that_has_begun(servers, open_streams, monkeypatch, window):
    """A file holds memory of an offline model; a live stream does not hold more by them."""
    now_s = 0.0
    monkeypatch.setattr(activity, "time", SimpleNamespace(monotonic=lambda: now_s))
    async with open_streams(servers(windows="file,long,live")) as streams:
        options = LiveStreamOptions(is_file=window is None, extra={"window": window} if window else {})
        stream = await streams.open(options, ANONYMOUS, "test")
        for samples in (0, 0, 800, 0, 0):
            now_s += 0.9 * MAX_SILENT_S
            await stream.push(np.zeros(samples, np.float32))
            await stream.watch(now_s)
        if not window:
            assert await ended(stream) == (word(0), GatewayCode.STREAM_IDLE)
        assert (streams.live, now_s) == (int(window is not None), 4.5 * MAX_SILENT_S)


async def test_a_stream_that_is_stopped_ends_with_that_reason_also_where_its_replica_is_lost(fleet, open_streams):
    only = fleet()
    async with open_streams(only, longest_segment_s=0) as streams:
        stream = await opened(streams)
        only.may_answer.clear()
        await stream.push(speech(1, 2))
        await stream.stop(GatewayError(GatewayCode.STREAM_TOO_OLD, "old"))
        await asyncio.to_thread(only.close)
        assert await ended(stream) == ("", GatewayCode.STREAM_TOO_OLD)


async def test_a_stream_that_finishes_is_not_idle(server, open_streams):
    async with open_streams(server) as streams:
        stream = await opened(streams)
        await stream.finish()
        await stream.watch(time.monotonic() + MAX_SILENT_S + 1)
        assert [event.is_last async for event in stream.events()] == [True]


@pytest.mark.parametrize("call", ["push", "end_segment"])
async def test_audio_that_waits_for_the_server_is_not_silence(server, open_streams, call):
    """Audio of a file, for example, while the model `speakers` is behind."""
    async with open_streams(server) as streams:
        stream = await opened(streams)
        goes_on = asyncio.Event()
        setattr(stream._upstream, call, lambda *_: goes_on.wait())
        waiting = asyncio.create_task(getattr(stream, call)(*[np.full(800, 0.25, np.float32)] * (call == "push")))
        await asyncio.sleep(0)
        for minutes in range(2, 6):
            await stream.watch(time.monotonic() + 60 * minutes)
        assert not (stream._is_finished or stream._upstream.is_parked or stream._upstream._soft_ends)
        goes_on.set()
        await waiting
        await stream.watch(time.monotonic() + 120)
        assert await ended(stream) == ("", GatewayCode.STREAM_IDLE)


async def test_a_stream_is_kept_open_on_the_server(server, open_streams):
    async with open_streams(server) as streams:
        stream = await opened(streams)
        requests = server.batch.recognizer.requests
        await until(lambda: len(requests) == 1)
        now_s = time.monotonic()
        await stream.watch(now_s + KEEP_ALIVE_S - 1)
        await stream.watch(now_s + KEEP_ALIVE_S + 1)
        await stream.watch(now_s + KEEP_ALIVE_S + 2)
        await until(lambda: stream._upstream.is_answered)
        await stream.watch(now_s + 2 * KEEP_ALIVE_S + 2)
        await until(lambda: len(requests) == 3)
        assert not any(request.samples.size for request in requests)


async def test_keeping_a_stream_open_does_not_wait_for_its_audio(server, open_streams):
    stalled = threading.Event()
    async with open_streams(server) as streams:
        stream = await opened(streams)
        server.on_request = lambda: stalled.wait(20)
        await stream.push(np.zeros(40_000, np.float32))
        await asyncio.wait_for(stream.watch(time.monotonic() + KEEP_ALIVE_S + 1), 5)
        stalled.set()
        await stream.finish()
        assert (await events_of(stream))[-1].is_last
