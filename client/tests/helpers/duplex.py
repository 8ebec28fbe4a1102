"""A stream of asyncio that is written and read at the same time."""

import asyncio
from collections.abc import Iterable

import numpy as np

from penstock_client import Result


async def results_while_sending(stream, parts: Iterable[np.ndarray]) -> list[Result]:
    """One task sends the parts and finishes the stream; another reads its results."""

    async def send():
        for part in parts:
            await stream.send(part)
        await stream.finish()

    sending = asyncio.create_task(send())
    results = [result async for result in stream]
    await sending
    return results
