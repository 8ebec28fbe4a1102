"""A call of any protocol, and its outcome in the terms of none."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from penstock_gateway.errors import GatewayCode

KEY = "sk-one"
RATE_HZ = 16_000
WAIT_S = 300
END_SEGMENT = np.zeros(0, np.float32)
"""Between parts of audio: a forced end."""


class Ports(NamedTuple):
    """HOST:PORT of a gateway, as of those in processes of their own."""

    http: str
    grpc: str


@dataclass
class Outcome:
    """Outcome of a call, in the terms of no protocol."""

    texts: list[str] = field(default_factory=list)
    """The final segments, without blanks around them."""
    words: list[tuple[str, int, int]] = field(default_factory=list)
    """Word, start and end in ms."""
    speakers: list[int | None] = field(default_factory=list)
    """The speaker of each word, from 1, of a call that asks for them."""
    channels: list[int] = field(default_factory=list)
    """The channel of each word, from 1: Riva's tag, or OpenAI's name of one of three or more."""
    alternatives: list[str] = field(default_factory=list)
    """Riva's last segment, the best first."""
    code: str = ""
    """Stable code of the error; "" for none."""
    message: str = ""
    status: Any = None
    """The protocol's own, of an error."""
    retry_after: str | None = None
    ignored: str = ""
    """Names of the fields without an effect."""

    @property
    def text(self) -> str:
        """All segments."""
        return " ".join(text for text in self.texts if text)

    def fail(self, status: Any, text: str, retry_after: str | None = None) -> None:
        """An error "CODE: message"."""
        self.code, _, self.message = text.partition(": ")
        self.status, self.retry_after = status, retry_after


class Call:
    """One call. `options`: the protocol's own, such as those in `wrong`."""

    protocol = ""
    """Name in metrics and logs."""
    is_live = True
    """The call's audio is recognized as it arrives; else at its end."""
    has_words = tells_rest = True
    """The call brings the times of words; has its text before a limit's error."""
    large_samples = 0
    """Audio of one message above its limit, for a gateway with --max-upload-mb 10."""
    wrong: ClassVar[tuple[dict[str, Any], ...]] = ()
    """Options that are rejected."""
    empty_end = ""
    """Code of a forced end without audio behind the last one; "" where that is answered as any other."""
    unused: ClassVar[dict[str, Any]] = {}
    """Options that are ignored, and named."""
    unused_of_files: ClassVar[dict[str, Any]] = {}
    """The same of an offline model."""
    speakers: ClassVar[dict[str, Any]] = {"speakers": "on"}
    """Options that ask for speakers."""
    figures: ClassVar[dict[str, Any]] = {"numbers": "figures"}
    """Options that ask for numbers as figures."""
    masks: ClassVar[dict[str, Any]] = {"mask_words": "true"}
    """Options that ask for masked words."""
    endpoints: ClassVar[dict[str, Any]] = {}
    """Options with which segments end in pauses."""

    def __init__(self, ports: Ports, key: str | None = KEY, model: str = "", **options: Any):
        self.ports, self.model, self.options = ports, model, options
        self.headers = {"authorization": f"Bearer {key}"} if key else {}
        self.outcome = Outcome()
        self._parts: asyncio.Queue[np.ndarray | None] = asyncio.Queue()
        self._has_end = False
        self._running = asyncio.create_task(self._run())

    def send(self, samples: np.ndarray) -> None:
        """Audio [n] at 16 kHz, in one message."""
        self._parts.put_nowait(samples)

    def end_segment(self) -> None:
        """Forces an end; for live calls."""
        self._parts.put_nowait(END_SEGMENT)

    def end(self) -> None:
        """No more audio follows."""
        self._has_end = True
        self._parts.put_nowait(None)

    async def cancel(self) -> None:
        """The client leaves."""
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    async def ended(self) -> Outcome:
        """Waits until the call is over."""
        await asyncio.wait_for(self._running, WAIT_S)
        return self.outcome

    @classmethod
    async def of(cls, ports: Ports, *parts: np.ndarray, **arguments: Any) -> Outcome:
        """A whole call."""
        call = cls(ports, **arguments)
        for part in parts:
            call.send(part)
        call.end()
        return await call.ended()

    @classmethod
    def errors(cls, code: GatewayCode) -> set[tuple[str, Any]]:
        """Possible outcomes of an error: (code, status)."""
        return {(code.name, code.status.grpc)}

    @classmethod
    def has_retry(cls, outcome: Outcome, code: GatewayCode) -> bool:
        """Whether this error says when to try again; a socket that is open or closed has no field for it."""
        return outcome.status in (code.status.http, code.status.grpc)

    async def _run(self) -> None:
        raise NotImplementedError

    async def _audio(self) -> AsyncIterator[np.ndarray]:
        while (part := await self._parts.get()) is not None:
            yield part

    async def _recording(self) -> np.ndarray:
        return np.concatenate([part async for part in self._audio()] or [np.zeros(0, np.float32)])


def pcm(samples: np.ndarray) -> bytes:
    """Samples [n] or [n, channels] as 16-bit PCM; bytes as they are."""
    return samples.tobytes() if samples.dtype == np.uint8 else (samples * 32768).astype("<i2").tobytes()
