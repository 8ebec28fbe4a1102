"""What only asyncio has: cancellation, many streams in one loop, no tasks left. The rest is in test_transports.py."""

import asyncio
import threading

import numpy as np
import pytest

from client.tests.helpers.duplex import results_while_sending
from client.tests.helpers.fakes import outputs
from client.tests.helpers.sound_files import media_file
from penstock_client import AsyncClient
from penstock_client.replies import parse_reply


def text(size):
    return parse_reply("s", outputs(0, size, True).get)[0].text


def test_one_task_sends_while_another_iterates(url, protocol, samples):
    async def main():
        async with AsyncClient(url, protocol) as client, client.open_stream() as stream:
            results = await results_while_sending(stream, np.array_split(samples, 50))
        return results, stream.transcript

    results, transcript = asyncio.run(main())
    assert len(results) == 51
    assert transcript.text == text(samples.size) and transcript.latency_s == results[-1].round_trip_s


def test_many_streams_share_one_loop_without_threads_of_their_own(url, protocol, samples, recognizer):
    recognizer.max_streams = 40
    threads = []

    async def main():
        async with AsyncClient(url, protocol) as client:
            await client.transcribe(samples[:10])
            before = set(threading.enumerate())
            note = lambda transcript: threads.append(set(threading.enumerate()) - before)  # noqa: E731
            sizes = [800 * (index + 1) for index in range(40)]
            done = await asyncio.gather(*(client.transcribe(samples[:size], on_progress=note) for size in sizes))
            return [transcript.text for transcript in done] == [text(size) for size in sizes]

    assert asyncio.run(main())
    assert not {thread.name for new in threads for thread in new if thread.name.startswith("penstock ")}


def test_a_cancelled_task_frees_its_slot(url, protocol, recognizer, samples):
    async def main():
        async with AsyncClient(url, protocol) as client:
            task = asyncio.create_task(client.transcribe(samples, realtime=True))
            while len(recognizer.requests) < 3:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return dict(recognizer.received)

    assert asyncio.run(main()) == {}
    assert recognizer.requests[-1].is_end


def test_waiting_does_not_block_the_loop(url, protocol, recognizer):
    release = threading.Event()
    recognizer.before_answer = lambda request: request.stream_id != "slow" or release.wait(5)

    async def main():
        async with AsyncClient(url, protocol) as client, client.open_stream("slow") as slow:
            await slow.send(np.zeros(800))
            waiting = asyncio.create_task(anext(aiter(slow)))
            assert (await client.transcribe(np.zeros(1600))).is_complete
            assert not waiting.done()
            release.set()
            return (await waiting).text

    assert asyncio.run(main()) == text(800)


def test_a_stream_that_is_not_used_leaves_nothing(url, protocol, recognizer):
    async def main():
        async with AsyncClient(url, protocol) as client:
            client.open_stream()
            async with client.open_stream():
                pass
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    assert asyncio.run(main()) == []
    assert recognizer.requests == []


def test_a_client_may_be_made_outside_the_loop_and_closed_unused(protocol):
    client = AsyncClient("localhost:1", protocol)
    asyncio.run(client.close())


def test_files_are_read(url, protocol, audio_file, tmp_path):
    async def main():
        async with AsyncClient(url, protocol) as client:
            return (await client.transcribe(audio_file)).text

    assert asyncio.run(main()) == text(38_400)


def test_times_are_those_of_a_file_that_begins_late(url, protocol, tmp_path, samples):
    pytest.importorskip("av")
    path = tmp_path / "late.mkv"
    path.write_bytes(media_file("matroska", "pcm_s16le", samples, 16_000, start_s=5.0))

    async def main():
        async with AsyncClient(url, protocol) as client:
            return (await client.transcribe(path)).words

    words = asyncio.run(main())
    assert (words[0].start_ms, words[-1].end_ms) == (5000, 7400)
