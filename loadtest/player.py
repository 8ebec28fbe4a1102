"""Streams one recording to a server in real time and records what happens to each request.

The recording comes in parts, as from a microphone. A part is sent at the moment at which its last sample would have
been spoken. These deadlines are absolute: a late part does not delay the next one. The stream makes requests of the
parts: a part that completes no chunk may wait for the ones after it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from loadtest.records import COMPLETE, CUT_SHORT, FAILED, REJECTED, SentRequest, Utterance, request_table
from loadtest.voices import Answer, Voice
from penstock_client import SAMPLE_RATE_HZ, AsyncStream, ClientError, Result, ServerFullError

ANSWER_WAIT_S = 5.0
"""Limit of the wait for the last answers; far beyond any that would pass."""

EPOCH_S = time.time() - time.monotonic()
"""From the monotonic clock to the epoch, read once: setting the clock moves no deadline."""


def now_s() -> float:
    """Seconds since the epoch, from the monotonic clock."""
    return EPOCH_S + time.monotonic()


class Player:
    """Plays one recording. `is_stopping`: True once the test or the user ends; `sleep` then returns."""

    def __init__(
        self,
        samples: np.ndarray,
        part_samples: int,
        is_stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = now_s,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ):
        self._samples = samples
        self._part_samples = part_samples
        self._is_stopping = is_stopping
        self._clock = clock
        self._sleep = sleep
        self._sent: list[SentRequest] = []
        self._unanswered: deque[SentRequest] = deque()
        self._audio_processed_s = 0.0

    async def play(self, open_stream: Callable[[], AsyncStream | Voice], recording: int, start_s: float) -> Utterance:
        """Plays from `start_s` on and returns after the last answer, or without it. Errors end up in the record."""
        opened_s = self._clock()
        try:
            async with open_stream() as stream:
                outcome = await self._stream(stream, start_s)
                text = stream.transcript.text if outcome == COMPLETE else ""
                return Utterance(recording, outcome, text, requests=request_table(self._sent), opened_s=opened_s)
        except ServerFullError as error:  # of a batched stream maybe before a part made a request
            after_s = self._clock() - (self._sent[0].sent_s if self._sent else opened_s)
            return Utterance(recording, REJECTED, "", _describe(error), after_s, request_table(self._sent), opened_s)
        except ClientError as error:
            return Utterance(recording, FAILED, "", _describe(error), None, request_table(self._sent), opened_s)

    async def _stream(self, stream: AsyncStream | Voice, start_s: float) -> str:
        free_s = start_s
        for begin in range(0, self._samples.size, self._part_samples):
            part = self._samples[begin : begin + self._part_samples]
            deadline_s = start_s + (begin + part.size) / SAMPLE_RATE_HZ
            await self._wait_until(deadline_s, stream)
            if self._is_stopping():
                return await self._cut_short(stream)
            is_last = begin + part.size == self._samples.size
            sent_s = self._clock()
            lag_s = sent_s - max(deadline_s, free_s)
            waiting = stream.held_samples + part.size
            request = SentRequest(deadline_s, sent_s, lag_s, waiting / SAMPLE_RATE_HZ, is_last)
            self._sent.append(request)
            self._unanswered.append(request)
            await (stream.finish if is_last else stream.send)(part)
            if stream.held_samples == waiting:  # no request was made of it yet
                self._sent.pop()
                self._unanswered.pop()
            request.audio_s -= stream.held_samples / SAMPLE_RATE_HZ
            free_s = self._clock()  # sending blocks where the server is a minute of audio behind
            self._record(await stream.poll())
        await self._await_answers(stream)
        return COMPLETE if stream.transcript.is_complete else CUT_SHORT

    async def _wait_until(self, deadline_s: float, stream: AsyncStream | Voice) -> None:
        """Sleeps. After the first request it polls for the answer, so that a rejection is timed when it arrives."""
        while (wait_s := deadline_s - self._clock()) > 0 and not self._is_stopping():
            if len(self._sent) == len(self._unanswered) == 1:
                self._record(await stream.poll(wait_s))
            else:
                await self._sleep(wait_s)

    async def _cut_short(self, stream: AsyncStream | Voice) -> str:
        """Ends the stream. The request that does so is not one of the recording's and is not recorded."""
        if self._sent:
            await stream.finish()
            await self._await_answers(stream)
        return CUT_SHORT

    async def _await_answers(self, stream: AsyncStream | Voice) -> None:
        give_up_s = self._clock() + ANSWER_WAIT_S
        while not stream.transcript.is_complete and (wait_s := give_up_s - self._clock()) > 0:
            self._record(await stream.poll(wait_s))

    def _record(self, results: Sequence[Result | Answer]) -> None:
        """Each result answers the oldest unanswered request, and holds its own round-trip time."""
        for result in results:
            if not self._unanswered:
                return  # the answer to the end of an utterance that was cut short
            request = self._unanswered.popleft()
            request.answered_s = request.sent_s + result.round_trip_s
            request.audio_processed_s = result.audio_processed_s
            request.completes_chunk = result.audio_processed_s > self._audio_processed_s
            self._audio_processed_s = result.audio_processed_s


def _describe(error: ClientError) -> str:
    return str(error)
