"""Ends of a stream: by its client, by a limit of time, with its gateway or with its server."""

import asyncio
import contextlib
import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
import websockets

from client.tests.helpers.event_loop import until
from client.tests.helpers.fake_fleet import speech
from gateway.tests.contract.call import RATE_HZ, pcm
from gateway.tests.contract.drivers import ALL, Realtime
from gateway.tests.helpers.realtime_events import receive
from penstock_gateway import limits
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.limits import MAX_AGE_S, MAX_IDLE_S
from penstock_gateway.process import serving

LIVE = [driver for driver in ALL if driver.is_live]
ITEM = "conversation.item.input_audio_transcription"


async def watch(served, after_s, is_over=lambda: True):
    """The limits of time, this many seconds later: once, or until a condition holds."""
    while True:
        for stream in served.opened:
            await stream.watch(time.monotonic() + after_s)
        if is_over():
            return
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("driver", ALL)
async def test_a_client_that_leaves_frees_its_stream(fleet, serve, gate, driver):
    """While a server answers nothing, and its audio waits for room."""
    server = fleet(max_streams=1)
    may_go_on = gate(server)
    async with serve(server) as served:
        call = driver(served.ports)
        call.send(speech(*range(1, 81)))
        call.end()
        await until(lambda: served.opened)
        await call.cancel()
        await until(lambda: not served.streams.live)
        may_go_on.set()
        await until(lambda: not server.batch.streams)
        assert (await driver.of(served.ports, speech(3))).text == "w3"


@pytest.mark.parametrize("driver", [driver for driver in ALL if driver is not Realtime])
async def test_a_client_that_leaves_frees_the_work_of_an_offline_model(serve, offline, driver):
    recognizer = offline.batch.recognizer
    recognizer.step_of = lambda name: 0  # it would be polled for ever
    async with serve(offline) as served:
        call = driver(served.ports)
        call.send(speech(1, 2))
        call.end()
        await until(lambda: recognizer.work)
        await call.cancel()
        await until(lambda: recognizer.cancelled)
        assert not recognizer.received and not recognizer.work


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda served: watch(served, MAX_IDLE_S + 1), GatewayCode.STREAM_IDLE),
        (lambda served: watch(served, MAX_AGE_S + 1), GatewayCode.STREAM_TOO_OLD),
    ],
    ids=["idle", "age"],
)
@pytest.mark.parametrize("driver", LIVE)
async def test_a_limit_ends_a_stream_after_its_text(fleet, serve, driver, end, code):
    server = fleet()
    async with serve(server) as served:
        call = driver(served.ports)
        call.send(speech(1, 2, 3))
        await until(lambda: any(samples for _, samples, _ in server.batch.rows))
        await end(served)
        await until(lambda: not served.streams.live)
        outcome = await call.ended()
        assert (outcome.code, outcome.status) in driver.errors(code)
        assert outcome.text == "w1 w2 w3"
        assert not server.batch.streams


async def test_a_drain_of_the_gateway_loses_no_word_of_an_open_session(fleet, serve):
    """Also one with ends in pauses, with other settings, and one that was silent."""
    turn, form = np.concatenate([speech(1), np.zeros(16_000, np.float32)]), {"type": "audio/pcm", "rate": RATE_HZ}
    async with serve(fleet()) as served, contextlib.AsyncExitStack() as stack:
        url = f"ws://{served.ports.http}/v1/realtime"
        sockets = [await stack.enter_async_context(websockets.connect(url)) for _ in range(2)]
        for keywords in ([], ["rubout"], []):
            for socket in sockets[bool(keywords) :]:
                transcription = {"keywords": keywords, "delay": "low"}
                session = {"audio": {"input": {"format": form, "transcription": transcription}}}
                await socket.send(json.dumps({"type": "session.update", "session": session}))
                await socket.send(pcm(turn))
                while (event := json.loads(await asyncio.wait_for(socket.recv(), 60)))["type"] != f"{ITEM}.completed":
                    assert event["type"] != "error"
                assert event["transcript"] == "w1"
            served.streams.drain()
        with pytest.raises(websockets.InvalidStatus):
            await websockets.connect(url)
        await served.streams.finish()
        for socket in sockets:
            with pytest.raises(websockets.ConnectionClosedError, match=r"1013.*STREAM_LOST: the gateway"):
                await receive(socket, "error")


async def test_a_drain_waits_for_a_session_between_two_streams(fleet, serve, monkeypatch):
    """Audio of another form needs another stream, which begins with it."""
    monkeypatch.setattr(limits, "POLL_S", 0.0)
    async with serve(fleet()) as served:
        async with websockets.connect(f"ws://{served.ports.http}/v1/realtime") as socket:
            await socket.send(pcm(speech(1)))
            await until(lambda: served.streams.live)
            stop = SimpleNamespace(asked_again=asyncio.Event())
            draining = asyncio.create_task(serving.drain(served.streams, 3600.0, stop))
            session = {"audio": {"input": {"format": {"type": "audio/pcmu"}}}}
            await socket.send(json.dumps({"type": "session.update", "session": session}))
            await until(lambda: not served.streams.live)
            for _ in range(9):
                await asyncio.sleep(0)
            assert not draining.done()
        await asyncio.wait_for(draining, 60)


@pytest.mark.parametrize("driver", ALL)
async def test_a_stream_that_is_lost_has_its_code(fleet, serve, gate, driver):
    server = fleet()
    may_go_on = gate(server)
    async with serve(server) as served:
        call = driver(served.ports)
        call.send(speech(1, 2))
        if not driver.is_live:
            call.end()
        await until(lambda: served.opened)
        served.opened[0].fail(GatewayError(GatewayCode.STREAM_LOST, "the replica is gone"))
        outcome = await call.ended()
        assert outcome.retry_after == "2" or not driver.has_retry(outcome, GatewayCode.STREAM_LOST)
        assert (outcome.code, outcome.status) in driver.errors(GatewayCode.STREAM_LOST)
        may_go_on.set()
        await until(lambda: not server.batch.streams)


@pytest.mark.parametrize("driver", LIVE)
async def test_a_call_with_a_mute_of_70_s_tells_every_word_once(fleet, serve, driver):
    """The call's slot is given back meanwhile."""
    only = fleet(max_streams=1)
    async with serve(only) as served:
        call = driver(served.ports)
        for last in (40, 80):
            call.send(speech(*range(last - 39, last + 1)))
            await until(lambda last=last: sum(samples for _, samples, _ in only.batch.rows) >= 800 * 40)
            await watch(served, 70, lambda: not only.batch.streams)
            only.batch.rows.clear()
        call.end()
        outcome = await call.ended()
    assert outcome.text.split() == [f"w{i}" for i in range(1, 81)]


@pytest.mark.parametrize("driver", LIVE)
async def test_a_turn_ends_where_no_message_comes(fleet, serve, driver, monkeypatch):
    """Also one whose audio completes no chunk."""
    monkeypatch.setattr(limits, "LATE_S", 1.0)
    async with serve(fleet()) as served:
        call = driver(served.ports, **driver.endpoints)
        for turns, samples in enumerate((speech(1, 2), speech(3)), start=1):
            call.send(samples)
            await until(lambda: served.opened and served.opened[0].activity.has_audio)
            await watch(served, 1.9, lambda turns=turns: len(call.outcome.texts) == turns)
        call.send(speech(4))
        call.end()
        assert (await call.ended()).texts == ["w1 w2", "w3", "w4"]


@pytest.mark.parametrize("driver", LIVE)
async def test_a_muted_call_whose_slot_is_taken_ends_after_an_hour(fleet, serve, driver):
    """With its text. The call that has the slot goes on."""
    only = fleet(max_streams=1)
    async with serve(only) as served:
        muted = driver(served.ports)
        muted.send(speech(1, 2))
        await until(lambda: any(samples for _, samples, _ in only.batch.rows))
        await watch(served, 70, lambda: not only.batch.streams)
        (replica,) = served.streams._groups[0].replicas
        await until(lambda: replica.has_room)
        other = driver(served.ports)
        other.send(speech(3, 4))
        await until(lambda: len(served.opened) == 2)
        await served.opened[0].watch(time.monotonic() + MAX_IDLE_S + 1)
        outcome = await muted.ended()
        assert (outcome.code, outcome.status) in driver.errors(GatewayCode.STREAM_IDLE)
        assert outcome.text == "w1 w2"
        other.end()
        assert (await other.ended()).text == "w3 w4"


@pytest.mark.parametrize("driver", LIVE)
async def test_forced_ends_in_the_first_80_ms_and_twice_in_a_row(fleet, serve, driver):
    server = fleet()
    async with serve(server) as served:
        call = driver(served.ports)
        for part in (speech(1), speech(2, 3)):
            call.send(part)
            call.end_segment()
            call.end_segment()
        call.send(speech(4))
        call.end()
        outcome = await call.ended()
        assert (outcome.text, outcome.code) == ("w1 w2 w3 w4", driver.empty_end)
        await until(lambda: not server.batch.streams)


@pytest.mark.parametrize("driver", LIVE)
async def test_a_forced_end_while_its_stream_moves(fleet, serve, driver):
    first, second = fleet(max_streams=9), fleet()
    async with serve(first, second) as served:
        call = driver(served.ports)
        call.send(speech(1, 2))
        await until(lambda: any(samples for _, samples, _ in first.batch.rows))
        (upstream,) = (stream._upstream for stream in served.opened)
        second.may_answer.clear()
        await asyncio.to_thread(first.close)
        await until(lambda: upstream.is_without_server)
        rows = upstream.rows
        call.end_segment()
        await until(lambda: upstream.rows > rows)
        second.may_answer.set()
        call.send(speech(3))
        call.end()
        outcome = await call.ended()
        assert (outcome.text, outcome.code) == ("w1 w2 w3", "")
        await until(lambda: not second.batch.streams)
