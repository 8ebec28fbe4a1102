"""Servers that do not answer, or late: which of them are lost, and what becomes of their streams."""

import asyncio
import socket
import time
from types import SimpleNamespace

import numpy as np

from client.tests.helpers.batched_client import WAIT_S
from client.tests.helpers.event_loop import until
from client.tests.helpers.moved_streams import closing, connected, play, told, undisturbed
from penstock_client.batched.link import Link
from penstock_client.batched.rows import START
from penstock_client.connection import ConnectionOptions


async def test_a_server_behind_a_black_hole_is_passed_over(servers):
    """A server that accepts connections, and answers nothing at all."""
    expected = await undisturbed(servers)
    first, third = servers(), servers()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        hole = SimpleNamespace(url=f"127.0.0.1:{listener.getsockname()[1]}")
        options = ConnectionOptions()  # another attempt to connect would cost as long again
        async with connected(first, hole, third, timeout_s=1.0, connection_options=options) as client:
            assert told(await play(client, closing(first, 14))) == expected
    assert third.batch.starts


async def test_a_server_that_accepts_a_start_and_answers_nothing_more(servers):
    """A server behind a black hole. The stream goes on at a third one, and what comes late is ignored."""
    expected = await undisturbed(servers)
    first, silent, third = servers(), servers(), servers()
    silent.batch.before_row = lambda samples, flags: silent.may_answer.clear() if flags & START else None

    async def lose(stream, i):
        if i == 14:
            await asyncio.to_thread(first.close)
        if i == 25:
            silent.may_answer.set()

    async with connected(first, silent, third, timeout_s=1.0) as client:
        assert told(await play(client, lose)) == expected
    assert silent.batch.starts


async def test_a_server_that_answers_late_after_its_stream_moved(servers):
    expected = await undisturbed(servers)
    first, second = servers(), servers()

    async def lose(stream, i):
        if i == 12:
            first.may_answer.clear()
        if i == 20:
            first.may_answer.set()

    async with connected(first, second, timeout_s=1.0) as client:
        assert told(await play(client, lose)) == expected
    assert second.batch.starts


async def test_a_slow_server_that_answers_an_empty_stream_keeps_its_streams(servers):
    expected = await undisturbed(servers)
    first, second = servers(), servers()
    slow = [False]

    def slowly(samples, flags):
        if slow and slow.pop():
            time.sleep(2.0)

    async def stall(stream, i):
        if i == 12:
            slow.append(True)

    first.batch.before_row = slowly
    async with connected(first, second, timeout_s=0.5, slow_s=WAIT_S) as client:
        assert told(await play(client, stall)) == expected
    assert first.batch.probes and not second.batch.starts


async def test_a_process_that_was_stalled_itself_judges_no_server(servers, monkeypatch):
    first, second = servers(), servers()
    stalled_s = 0.0
    monkeypatch.setattr(Link, "now_s", staticmethod(lambda: time.monotonic() + stalled_s))

    async def stall(stream, i):
        nonlocal stalled_s
        if i == 12:
            first.may_answer.clear()
            link = stream._at.link
            await stream.push(np.zeros(0, np.float32))
            await until(lambda: link._in_flight)
            sent_s, stalled_s = link.now_s(), 100.0
            await until(lambda: link.is_lost or link._last_activity_s > sent_s + 99)
            first.may_answer.set()

    async def run():
        async with connected(first, second, timeout_s=4.0) as client:
            return await play(client, stall)

    await run()
    assert len(first.batch.starts) == 1 and not second.batch.starts
