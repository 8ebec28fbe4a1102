"""A stream of a gateway with the methods that a player uses."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import numpy as np

from loadtest.gateway_clients import CONNECTION_ERRORS, GatewayFullError, Texts
from loadtest.voices import Voice
from penstock_client import SAMPLE_RATE_HZ, ServerFullError, StreamError


@dataclass
class GatewayTranscript:
    """The final texts of a stream so far."""

    text: str = ""
    is_complete: bool = False


class GatewayVoice(Voice):
    """A stream of a gateway. A text answers the part with the last sample that it covers, and all parts before it.

    A gateway sends changed texts only, so chunks without a change are not seen.
    """

    held_samples = 0

    def __init__(self, open_texts: Callable[[AsyncIterator[np.ndarray]], Texts]):
        """`open_texts`: parts of int16 samples at 16 kHz to texts."""
        super().__init__()
        self.transcript = GatewayTranscript()
        self._open_texts = open_texts
        self._parts: asyncio.Queue[np.ndarray | None] = asyncio.Queue()
        self._unanswered: deque[tuple[float, float]] = deque()
        """Of each part: when it was sent, and the end of its audio."""
        self._sent_s = self._processed_s = 0.0

    async def send(self, samples: np.ndarray) -> None:
        """Sends samples [n]."""
        self._sent_s += len(samples) / SAMPLE_RATE_HZ
        self._unanswered.append((self._now_s(), self._sent_s))
        self._parts.put_nowait(np.round(samples * 32768).clip(-32768, 32767).astype(np.int16))

    async def finish(self, samples: np.ndarray = ()) -> None:
        """Ends the stream after these samples."""
        if len(samples):
            await self.send(samples)
        self._parts.put_nowait(None)

    async def __aenter__(self) -> "GatewayVoice":
        self._begin_reading()
        return self

    async def _audio(self) -> AsyncIterator[np.ndarray]:
        while (part := await self._parts.get()) is not None:
            yield part

    async def _read(self) -> None:
        try:
            async for text in self._open_texts(self._audio()):
                if text.is_final:
                    self.transcript.text = " ".join(filter(None, (self.transcript.text, text.text)))
                elif text.processed_s is not None:
                    self._answer(text.processed_s)
        except GatewayFullError as error:
            raise ServerFullError("gateway", str(error)) from error
        except CONNECTION_ERRORS as error:
            raise StreamError("gateway", f"{type(error).__name__}: {error}", "GATEWAY_FAILED") from error
        self._answer(self._sent_s)
        self.transcript.is_complete = True

    def _answer(self, processed_s: float) -> None:
        """Answers the parts up to the first one with `processed_s`, which is the one that completed the chunk."""
        while self._unanswered and self._processed_s < processed_s:
            sent_at_s, end_s = self._unanswered.popleft()
            if end_s + 0.5 / SAMPLE_RATE_HZ >= processed_s:
                self._processed_s = processed_s
            self._add_answer(self._now_s() - sent_at_s, self._processed_s)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()
