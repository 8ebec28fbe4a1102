"""Only in asyncio: cancellation, many streams in one loop, no tasks left. The rest is in test_transports.py."""

import asyncio
import threading

import pytest

from client.tests.helpers.event_loop import until
from client.tests.helpers.fakes import text_of
from penstock_client import AsyncClient


async def test_many_streams_share_one_loop_without_threads_of_their_own(url, protocol, samples, recognizer):
    recognizer.max_streams = 40
    threads = []

    async with AsyncClient(url, protocol) as client:
        await client.transcribe(samples[:10])
        before = set(threading.enumerate())
        note = lambda transcript: threads.append(set(threading.enumerate()) - before)  # noqa: E731
        sizes = [800 * (index + 1) for index in range(40)]
        done = await asyncio.gather(*(client.transcribe(samples[:size], on_progress=note) for size in sizes))
        assert [transcript.text for transcript in done] == [text_of(size) for size in sizes]
    assert not {thread.name for new in threads for thread in new if thread.name.startswith("penstock ")}


async def test_a_cancelled_task_frees_its_slot(url, protocol, recognizer, samples):
    async with AsyncClient(url, protocol) as client:
        task = asyncio.create_task(client.transcribe(samples, realtime=True))
        await until(lambda: len(recognizer.requests) >= 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert dict(recognizer.received) == {}
    assert recognizer.requests[-1].is_end


async def test_a_stream_that_is_not_used_leaves_nothing(url, protocol, recognizer):
    before = asyncio.all_tasks()
    async with AsyncClient(url, protocol) as client:
        client.open_stream()
        async with client.open_stream():
            pass
    assert asyncio.all_tasks() == before
    assert recognizer.requests == []


def test_a_client_may_be_made_outside_the_loop_and_closed_unused(protocol):
    client = AsyncClient("localhost:1", protocol)
    asyncio.run(client.close())
