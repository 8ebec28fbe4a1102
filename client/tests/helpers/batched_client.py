"""A `BatchedClient` of a fake server, and what its tests look at."""

from contextlib import asynccontextmanager

import numpy as np

from penstock_client import Transcript
from penstock_client.batched.client import BatchedClient

FIRST, CHUNK = 700, 1000
GEOMETRY = {"first_chunk_samples": str(FIRST), "chunk_samples": str(CHUNK)}
WAIT_S = 60


@asynccontextmanager
async def connected(server, **arguments):
    async with BatchedClient(f"127.0.0.1:{server.port}", timeout_s=WAIT_S, **arguments) as client:
        yield client


async def results_of(stream):
    return [result async for result in stream]


async def answers_of(stream):
    """The answer to each row, also to one without a result."""
    answers = []
    while (answer := await stream.next_answer()) is not None:
        answers.append(answer)
    return answers


def rows_of(server, number: int) -> list[tuple[int, int]]:
    """(samples, flags) of a stream's rows, in the order in which the server received them."""
    return [(row[1], row[2]) for rows in server.batch.batches for row in rows.tolist() if row[0] == number]


def noise(samples: int) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.1, samples).astype(np.float32)


def transcript(results) -> Transcript:
    found = Transcript()
    for result in results:
        found.add(result)
    return found


def whole_text(samples: int) -> list[str]:
    """The words of a stream without segments: one in 800 samples."""
    return [("wörd", "λέξη", "語", "🙂")[index % 4] + str(index) for index in range(-(-samples // 800))]
