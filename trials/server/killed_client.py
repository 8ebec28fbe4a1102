"""A client process that streams until it is killed. Imports little: one is started per kill."""

import asyncio
import time
from multiprocessing.connection import Connection

import numpy as np
import tritonclient.grpc as triton_grpc


def stream_until_killed(url: str, name: str, samples: np.ndarray, going: Connection) -> None:
    """Streams `samples` endlessly, in requests of 100 ms."""
    client = triton_grpc.InferenceServerClient(url)
    is_first = True
    while True:
        for start in range(0, len(samples), 1600):
            audio = triton_grpc.InferInput("AUDIO", [1, len(samples[start : start + 1600])], "FP32")
            audio.set_data_from_numpy(samples[None, start : start + 1600])
            client.infer("asr", [audio], sequence_id=name, sequence_start=is_first)
            if is_first:
                going.send("going")
            is_first = False
            time.sleep(0.02)


def stream_batched_until_killed(url: str, streams: int, samples: np.ndarray, going: Connection) -> None:
    """Streams `samples` endlessly in each of several streams, over one call of `asr_batch`."""
    asyncio.run(_stream_batched(url, streams, samples, going))


async def _stream_batched(url: str, count: int, samples: np.ndarray, going: Connection) -> None:
    from penstock_client import BatchedClient

    async with BatchedClient(url) as client:
        streams = [await client.open_stream() for _ in range(count)]
        for stream in streams:
            await stream.accepted()
        going.send("going")
        while True:
            for start in range(0, len(samples), 1600):
                for stream in streams:
                    await stream.push(samples[start : start + 1600])
                await asyncio.sleep(0.02)
