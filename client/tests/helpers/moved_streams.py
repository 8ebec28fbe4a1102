"""A stream over servers of which some are lost, and the results that its caller got."""

import asyncio
import contextlib

from client.tests.helpers.batched_client import WAIT_S
from client.tests.helpers.event_loop import until
from client.tests.helpers.fake_fleet import BLOCK, speech
from penstock_client import BatchedClient, ClientError, StreamOptions
from penstock_client.connection import ConnectionOptions

SPEECH = speech(1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0, 0, 0, 0, 0, 15, 16, 17, 18, 19)
"""Endpoints after w5 and w14."""
OPTIONS = StreamOptions(endpoint_silence_ms=800)
BLOCKS = len(SPEECH) // BLOCK


@contextlib.asynccontextmanager
async def connected(*servers, **arguments):
    arguments = {"timeout_s": WAIT_S, "connection_options": ConnectionOptions(connect_retry_s=0), **arguments}
    async with BatchedClient([server.url for server in servers], **arguments) as client:
        yield client


async def play(client, before_block=None, marks=(), options=OPTIONS, before_last=None):
    """The results of a stream of SPEECH, block by block. `before_block` is awaited with the stream and its position.

    Segments are ended before the blocks of `marks`.
    """
    results = []
    async with await client.open_stream(options) as stream:
        reading = asyncio.create_task(read(stream, results))
        with contextlib.suppress(ClientError):  # reading has it, too
            for i in range(BLOCKS):
                if before_block:
                    await before_block(stream, i)
                if i in marks:
                    await stream.end_segment()
                await stream.push(SPEECH[i * BLOCK : (i + 1) * BLOCK])
                await until(lambda: stream.is_answered or reading.done())
            if before_last:
                before_last()
            await stream.finish()
        await asyncio.wait_for(reading, WAIT_S)
    return results


def closing(server, at):
    """Closes the server before this block of a stream."""

    async def close(stream, i):
        if i == at:
            await asyncio.to_thread(server.close)

    return close


async def read(stream, results):
    """Appends the results."""
    async for result in stream:
        results.append(result)


def told(results):
    """Words with their times and segments, for a caller to show."""
    words = [(word.text, word.start_ms, word.end_ms) for result in results for word in result.new_words]
    finals = [
        (one.segment, one.text, round(one.end_s, 4), one.answers_finalize, one.is_last)
        for one in results
        if one.is_final
    ]
    return words, finals


async def played(*servers, lost=None, **arguments):
    """The results of `play` with these servers, of which `lost` names those that are lost before a block."""

    async def lose(stream, i):
        for server in (lost or {}).get(i, ()):
            await asyncio.to_thread(server.close)

    async with connected(*servers) as client:
        return await play(client, **({"before_block": lose} | arguments))


async def undisturbed(servers, **arguments):
    return told(await played(servers(), **arguments))
