"""Streams live audio with asyncio, and ends a segment every second.

A recording stands in for the microphone; replace `live_blocks` with any source of samples.

    python live_async.py call.wav localhost:8001
"""

import asyncio
import sys
from collections.abc import AsyncIterator

import numpy as np
import numpy.typing as npt

from penstock_client import SAMPLE_RATE_HZ, AsyncClient, AsyncStream, ClientError, read_audio

BLOCK_SAMPLES = SAMPLE_RATE_HZ // 10
BLOCKS_PER_SEGMENT = 10


async def main(path: str, url: str = "localhost:8001") -> None:
    """One task sends, another prints the results."""
    async with AsyncClient(url) as client, client.open_stream() as stream:
        printing = asyncio.create_task(show(stream))
        async for number, block in live_blocks(path):
            if number % BLOCKS_PER_SEGMENT:
                await stream.send(block)
            else:
                await stream.finalize(block)
        await stream.finish()
        await printing
    print(f"in {len(stream.transcript.segments)} segments: {stream.transcript.text}")


async def live_blocks(path: str) -> AsyncIterator[tuple[int, npt.NDArray[np.float32]]]:
    """Yields the blocks [n] of a recording, numbered from 1, each once its last sample would be spoken."""
    samples = read_audio(path)
    clock = asyncio.get_running_loop()
    start_s = clock.time()
    for number, start in enumerate(range(0, samples.size, BLOCK_SAMPLES), start=1):
        await asyncio.sleep(start_s + number * BLOCK_SAMPLES / SAMPLE_RATE_HZ - clock.time())
        yield number, samples[start : start + BLOCK_SAMPLES]


async def show(stream: AsyncStream) -> None:
    """Prints each result."""
    async for result in stream:
        print(f"{result.segment:3} {'final' if result.is_final else '     '} {result.text}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    try:
        asyncio.run(main(*sys.argv[1:]))
    except ClientError as error:
        sys.exit(f"error: {error}")
