"""A stream with the methods that a player uses, where it is no `AsyncStream`: here of a `BatchedClient`."""

import asyncio
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from penstock_client import SAMPLE_RATE_HZ, BatchedClient, StreamOptions, Transcript
from penstock_client.transport.async_channel import AsyncSignal


class Answer(NamedTuple):
    """The server has answered a request: the part of a `Result` that a player reads."""

    round_trip_s: float
    audio_processed_s: float
    """Audio of the stream up to the request's end."""


class Voice(ABC):
    """Opens the stream when it is entered. Raises ClientError as an `AsyncStream` does."""

    def __init__(self) -> None:
        self._answers: list[Answer] = []
        self._changed = AsyncSignal()

    @property
    @abstractmethod
    def held_samples(self) -> int:
        """Samples that made no request yet."""

    async def poll(self, wait_s: float = 0.0) -> list[Answer]:
        """The answers that have arrived; waits up to `wait_s` for the first or for the last result."""
        if not self._answers and not self._reading.done() and wait_s > 0:
            await self._changed.wait(wait_s)
        answers, self._answers = self._answers, []
        if not answers and self._reading.done():
            self._reading.result()
        return answers

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])

    def _begin_reading(self) -> None:
        async def read() -> None:
            try:
                await self._read()
            finally:
                self._changed.give()

        self._reading = asyncio.create_task(read())

    def _add_answer(self, round_trip_s: float, audio_processed_s: float) -> None:
        self._answers.append(Answer(round_trip_s, audio_processed_s))
        self._changed.give()

    @abstractmethod
    async def _read(self) -> None:
        """Reads all results."""


class BatchedVoice(Voice):
    """A stream of a `BatchedClient`. Its answers include those without changes."""

    def __init__(self, client: BatchedClient, options: StreamOptions):
        super().__init__()
        self.transcript = Transcript()
        self._client = client
        self._options = options

    @property
    def held_samples(self) -> int:
        """Samples that complete no chunk yet."""
        return self._stream.held_samples

    async def send(self, samples: np.ndarray) -> None:
        """Pushes samples [n]."""
        await self._stream.push(samples)

    async def finish(self, samples: np.ndarray = ()) -> None:
        """Ends the stream after these samples."""
        await self._stream.finish(samples)

    async def __aenter__(self) -> "BatchedVoice":
        self._stream = await self._client.open_stream(self._options, self._note)
        self._begin_reading()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._stream.cancel()
        await super().__aexit__(*error)

    def _note(self, samples: int, round_trip_s: float) -> None:
        if samples:  # else it is the answer to the start
            self._add_answer(round_trip_s, samples / SAMPLE_RATE_HZ)

    async def _read(self) -> None:
        async for result in self._stream:
            self.transcript.add(result)
            self.transcript.is_complete = result.is_last
