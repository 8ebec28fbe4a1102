"""The stream as protocols use it: push audio, end segments, read events. Independent of sockets and protocols."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock_client import Answer
from penstock_client.phrases import fit_phrase
from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security.keys import ApiKey
from penstock_gateway.stream.events import Event

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStreamOptions:
    """Options of one stream, in the server's terms; a protocol maps its fields to them."""

    model: str = ""
    """Name of a replica group; "" is the first group."""
    language: str | None = None
    """One of the group's languages; None where the model has no choice or the server's default applies."""
    phrases: Sequence[tuple[str, float]] = ()
    """Boosted phrases: text, and the boost per token in nats."""
    endpoint_silence_ms: int = 800
    """Silence that ends a segment; 0: segments end by `end_segment` only."""
    decoder: str | None = None
    """The server's default where it is None."""
    n_best: int = 0
    """Alternatives of a final; needs a beam search."""
    speakers: int | str | None = None
    """As the option of the server: "on", or the most speakers."""
    extra: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Other start options of the server by name, such as `lm_weight`. The server checks them."""
    is_as_direct: bool = False
    """True where only `model` and `extra` count: what they do not name is as the server is set."""
    is_file: bool = False
    """True for a whole file, whose results may all come after its end."""


@dataclass(frozen=True, slots=True)
class ModelGroup:
    """The replicas that serve one model with one context."""

    name: str
    """Model name that clients use."""
    model: str
    """Name of the checkpoint."""
    sample_rate_hz: int
    context: tuple[int, int] | None
    """Encoder frames of left and right context; None for an offline model."""
    chunk_ms: float
    """Audio of one chunk: words come in steps of this duration; 0 for an offline model."""
    languages: tuple[str, ...]
    """Languages that a stream can choose; empty for a model without a choice."""
    decoders: tuple[str, ...]
    """Decoders that a stream can choose; the first is the default."""
    max_beam_size: int
    max_boosted_phrases: int
    parameters: Mapping[str, str] = field(default_factory=dict, compare=False)
    """All that its server publishes."""
    detected_languages: tuple[str, ...] = ()
    """Languages that a model without a choice recognizes, as far as its server says so."""
    alphabet: frozenset[str] | None = None
    """The characters that the model writes; empty where it writes every one, None where the server does not say."""
    windows: tuple[str, ...] = ()
    """Of an offline model, which recognizes whole files; else empty."""
    live_window: str | None = None
    """Of an offline model: the window of live streams, if it has any."""

    @property
    def takes_live(self) -> bool:
        """False for an offline model without live streams."""
        return not self.windows or self.live_window is not None

    def check_live(self) -> None:
        """GatewayError FILES_ONLY for an offline model without live streams."""
        if not self.takes_live:
            message = (
                f"live audio is not accepted by model {self.name!r}; accepted: files, or a gateway with --live-window"
            )
            raise GatewayError(ErrorCode.FILES_ONLY, message, "model")

    def unwritable(self, phrases: Iterable[str]) -> list[str]:
        """Those that a stream leaves out, because the model cannot write them."""
        alphabet = self.alphabet
        return [text for text in phrases if fit_phrase(text, alphabet) is None] if alphabet else []


class LiveStream(Protocol):
    """One stream. One task pushes, one reads events. Every method raises GatewayError once the stream has failed."""

    last_heard_s: float
    """Of a monotonic clock: when anything but audio came from the client."""

    async def push(self, samples: Samples) -> None:
        """Sends audio [n], float32 at the model's rate. Waits while more than 2 s are unanswered.

        No samples only show that the client is not silent.
        """

    async def end_segment(self) -> None:
        """Ends the segment after the audio pushed so far. A Final with `forced` answers it, also for silence."""

    async def finish(self) -> None:
        """No more audio follows. `events` ends after the Final with `is_last`."""

    async def cancel(self) -> None:
        """The client vanished: frees the stream on the server; no more events. Also after `finish`; never raises."""

    def events(self) -> AsyncIterator[Event]:
        """Partials and Finals in order. Raises GatewayError where the stream is lost."""

    @property
    def rows(self) -> int:
        """Rows of the stream so far."""

    def answers(self) -> AsyncIterator[Answer]:
        """The server's answer to each row, in order: for a protocol of requests, instead of `events`.

        Raises GatewayError where the stream is lost.
        """


class Streams(Protocol):
    """Opens streams on the replicas."""

    @property
    def groups(self) -> Sequence[ModelGroup]:
        """The groups with a known model, the default first; empty until a replica has answered."""

    def group(self, model: str) -> ModelGroup:
        """The group of this name, or the first for "" and OpenAI's names.

        Raises GatewayError: MODEL_NOT_FOUND, or NO_REPLICA until a replica of it has answered.
        """

    def check_room(self, key: ApiKey) -> None:
        """Raises GatewayError where every stream would be rejected now: STREAMS_EXHAUSTED, NO_REPLICA."""

    async def open(self, options: LiveStreamOptions, key: ApiKey, protocol: str) -> LiveStream:
        """Starts a stream on the replica with the most room; `protocol` names it in metrics and logs.

        Raises GatewayError: FIELD_INVALID for options that the server rejects, FILES_ONLY for live audio to an offline
        model without live streams, SPEAKERS_NOT_SERVED, STREAMS_EXHAUSTED, NO_REPLICA.
        """
