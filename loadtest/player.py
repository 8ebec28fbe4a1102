"""Streams one recording to a server in real time and notes what happens to each piece.

A piece is sent at the moment at which its last sample would have been spoken. These deadlines are absolute: a late
piece does not delay the next one. Knows penstock_client's streams, neither Locust nor what measures the notes.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

import numpy as np

from loadtest.records import COMPLETE, CUT_SHORT, FAILED, REFUSED, SentPiece, Utterance, piece_table
from penstock_client import SAMPLE_RATE_HZ, AsyncStream, ClientError, Result, ServerFullError

ANSWER_WAIT_S = 5.0
"""How long the last answers may take, once the audio has ended. Far beyond any that would pass."""

EPOCH_S = time.time() - time.monotonic()
"""From the monotonic clock to the date, asked once: a clock that is set meanwhile moves no deadline."""


def now_s() -> float:
    """Seconds since the epoch, evenly growing."""
    return EPOCH_S + time.monotonic()


class Player:
    """Plays one recording. `is_stopping`: True once the test or the user has been told to end; `sleep` then wakes."""

    def __init__(
        self,
        samples: np.ndarray,
        piece_samples: int,
        is_stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = now_s,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ):
        self._samples = samples
        self._piece_samples = piece_samples
        self._is_stopping = is_stopping
        self._clock = clock
        self._sleep = sleep
        self._sent: list[SentPiece] = []
        self._unanswered: deque[SentPiece] = deque()
        self._audio_processed_s = 0.0

    @property
    def duration_s(self) -> float:
        """Of the recording."""
        return self._samples.size / SAMPLE_RATE_HZ

    async def play(self, open_stream: Callable[[], AsyncStream], recording: int, start_s: float) -> Utterance:
        """Plays from `start_s` on; returns when the last answer is there, or does not come. Raises nothing of it."""
        try:
            async with open_stream() as stream:
                outcome = await self._stream(stream, start_s)
                text = stream.transcript.text if outcome == COMPLETE else ""
                return Utterance(recording, outcome, text, pieces=piece_table(self._sent))
        except ServerFullError as error:
            after_s = self._clock() - self._sent[0].sent_s
            return Utterance(recording, REFUSED, "", _describe(error), after_s, piece_table(self._sent))
        except ClientError as error:
            return Utterance(recording, FAILED, "", _describe(error), None, piece_table(self._sent))

    async def _stream(self, stream: AsyncStream, start_s: float) -> str:
        free_s = start_s
        for begin in range(0, self._samples.size, self._piece_samples):
            part = self._samples[begin : begin + self._piece_samples]
            deadline_s = start_s + (begin + part.size) / SAMPLE_RATE_HZ
            await self._wait_until(deadline_s, stream)
            if self._is_stopping():
                return await self._cut_short(stream)
            is_last = begin + part.size == self._samples.size
            sent_s = self._clock()
            piece = SentPiece(deadline_s, sent_s, sent_s - max(deadline_s, free_s), part.size / SAMPLE_RATE_HZ, is_last)
            self._sent.append(piece)
            self._unanswered.append(piece)
            await (stream.finish if is_last else stream.send)(part)
            free_s = self._clock()  # sending waits where the server is a minute of audio behind
            self._take_in(await stream.poll())
        await self._await_answers(stream)
        return COMPLETE if stream.transcript.is_complete else CUT_SHORT

    async def _wait_until(self, deadline_s: float, stream: AsyncStream) -> None:
        """Sleeps. After the first piece it waits for the answer, so that a refusal is noticed when it comes."""
        while (wait_s := deadline_s - self._clock()) > 0 and not self._is_stopping():
            if len(self._sent) == len(self._unanswered) == 1:
                self._take_in(await stream.poll(wait_s))
            else:
                await self._sleep(wait_s)

    async def _cut_short(self, stream: AsyncStream) -> str:
        """Ends the audio where it is. The piece that does so is none of the recording's and is not noted."""
        if self._sent:
            await stream.finish()
            await self._await_answers(stream)
        return CUT_SHORT

    async def _await_answers(self, stream: AsyncStream) -> None:
        give_up_s = self._clock() + ANSWER_WAIT_S
        while not stream.transcript.is_complete and (wait_s := give_up_s - self._clock()) > 0:
            self._take_in(await stream.poll(wait_s))

    def _take_in(self, results: list[Result]) -> None:
        """Each result answers the oldest piece that waits for one; when it came, the result itself knows."""
        for result in results:
            if not self._unanswered:
                return  # the answer to the end of an utterance that was cut short
            piece = self._unanswered.popleft()
            piece.answered_s = piece.sent_s + result.round_trip_s
            piece.audio_processed_s = result.audio_processed_s
            piece.completes_chunk = result.audio_processed_s > self._audio_processed_s
            self._audio_processed_s = result.audio_processed_s


def _describe(error: ClientError) -> str:
    return f"{type(error).__name__}: {error}"
