"""The server-sent events of a streamed transcription: only text that cannot change is sent."""

import json
from collections.abc import Sequence
from typing import Any

from penstock_client.audio.pcm import Remark
from penstock_client.writing import blank_between
from penstock_gateway.errors import GatewayError
from penstock_gateway.http.openai_objects import error_body, logprobs
from penstock_gateway.openai.formats import speaker_segment, usage
from penstock_gateway.openai.request import TranscriptionForm
from penstock_gateway.stream.events import Event, Final, Word, speaker_turns

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which clients skip."""


class TranscriptEvents:
    """The events of one stream. The deltas, one after another, are the text of `done`."""

    def __init__(self, has_logprobs: bool, form: TranscriptionForm | None = None):
        """form: of a request whose turns of speakers are events, too."""
        self._has_logprobs, self._form = has_logprobs, form
        self._turns = 0
        self._text = ""
        self._words: list[Word] = []
        self._sent_chars = self._sent_words = 0
        """Of the current segment."""

    def add(self, event: Event) -> bytes | None:
        """The delta for an event, and the turns of speakers in a final; None where nothing new is stable."""
        segments = []
        if self._form is not None and isinstance(event, Final) and event.text:
            for turn in speaker_turns(event):
                segments.append(_encode(speaker_segment(self._turns, turn, self._form)))
                self._turns += 1
        return b"".join([self._delta(event) or b"", *segments]) or None

    def _delta(self, event: Event) -> bytes | None:
        is_final = isinstance(event, Final)
        stable = event.text if isinstance(event, Final) else event.text[: event.stable_chars]
        delta = stable[self._sent_chars :]
        if not is_final and not delta:
            return None
        if not self._sent_chars:
            delta = blank_between(self._text, delta) + delta
        words = event.words[self._sent_words :]
        tokens = logprobs(words, self._words[-1].text if self._words else "") if self._has_logprobs else None
        self._words += words
        self._text += delta
        self._sent_chars, self._sent_words = (0, 0) if is_final else (len(stable), len(event.words))
        if not delta and not tokens:
            return None
        body: dict[str, Any] = {"type": "transcript.text.delta", "delta": delta}
        if tokens is not None:
            body["logprobs"] = tokens
        return _encode(body)

    def done(self, duration_s: float, remarks: Sequence[Remark] = ()) -> bytes:
        """The last event."""
        body: dict[str, Any] = {"type": "transcript.text.done", "text": self._text, "usage": usage(duration_s)}
        if remarks:
            body["remarks"] = [remark.document for remark in remarks]
        if self._has_logprobs:
            body["logprobs"] = logprobs(self._words)
        return _encode(body)


def error_event(error: GatewayError) -> bytes:
    """The last event of a stream that failed."""
    return _encode({"error": error_body(error)})


def _encode(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n".encode()
