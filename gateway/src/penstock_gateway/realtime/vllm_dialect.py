"""The dialect of vLLM's /v1/realtime: audio between a commit and a commit with `final` has one text.

Knows no socket. Its session is `model` alone, audio is 16-bit PCM at 16 kHz, and an error's `error` is a string.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock_client.audio.pcm import RawFormat
from penstock_client.writing import blank_between, join_texts
from penstock_gateway.config import Config
from penstock_gateway.errors import GatewayError, shown
from penstock_gateway.realtime.dialect import END_SEGMENT, Action, Audio, Configure, Item, ServerEvent, read_audio
from penstock_gateway.stream.events import Event, Partial
from penstock_gateway.stream.options import LiveStreamOptions
from penstock_gateway.stream.replica_streams import ReplicaStreams
from penstock_gateway.validation import Fields, invalid, read_fields

_AUDIO = RawFormat("s16le", 16_000, 1)


class SessionUpdate(Fields):
    """`session.update`."""

    model: str | None = None


class Commit(Fields):
    """`input_audio_buffer.commit`."""

    final: bool | None = None


class VllmDialect:
    """One connection, from its first `session.update` with `model`."""

    def __init__(self, streams: ReplicaStreams, config: Config):
        self._streams, self._config = streams, config
        self._texts: list[str] = []  # the segments since the last `transcription.done`
        self._item = Item("")
        self._has_audio = False
        self._ends = 0  # final commits that are not answered yet

    def receive(self, event: Mapping[str, Any]) -> Sequence[Action]:
        """Actions of a client event. GatewayError for a wrong one, which then has no effect."""
        kind = event.get("type")
        if kind == "input_audio_buffer.append":
            self._has_audio = True
            return (Audio(read_audio(event)),)
        if kind == "session.update":
            group = self._streams.group(read_fields(SessionUpdate, event, "").model or "")
            group.check_live()
            silence_ms = self._config.endpoint_silence_ms
            return (Configure(_AUDIO, LiveStreamOptions(model=group.name, endpoint_silence_ms=silence_ms)),)
        if kind == "input_audio_buffer.commit":
            return self._commit(is_final=bool(read_fields(Commit, event, "").final))
        accepted = "session.update, input_audio_buffer.append and .commit"
        raise invalid("type", f"is {shown(kind)}; accepted: {accepted}")

    def _commit(self, is_final: bool) -> Sequence[Action]:
        if not is_final:
            return ()  # begins a text; audio is recognized as it arrives
        if not self._has_audio:
            return (_done(""),)
        self._has_audio = False
        self._ends += 1
        return (END_SEGMENT,)

    def result(self, event: Event) -> list[ServerEvent]:
        """The server events for an event of the stream."""
        events = []
        stable_chars = event.stable_chars if isinstance(event, Partial) else len(event.text)
        is_first = not self._item.sent
        if delta := self._item.advance(event.text, stable_chars):
            space = blank_between(join_texts(self._texts), delta) if is_first else ""
            events.append({"type": "transcription.delta", "delta": space + delta})
        if isinstance(event, Partial):
            return events
        self._texts.append(event.text)
        self._item = Item("")
        if event.forced and self._ends:
            self._ends -= 1
            events.append(_done(join_texts(self._texts)))
            self._texts.clear()
        return events

    def failed(self, error: GatewayError) -> list[ServerEvent]:
        """The stream is lost."""
        return [self.rejected(error, None)]

    def rejected(self, error: GatewayError, client_event: object) -> ServerEvent:
        """The `error` event; vLLM's have no id."""
        return {"type": "error", "error": error.message, "code": error.code.name.lower()}


def _done(text: str) -> ServerEvent:
    return {"type": "transcription.done", "text": text, "usage": None}
