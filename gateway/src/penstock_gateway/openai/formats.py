"""The reply to a transcription request: a document in each of its formats, or server-sent events."""

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock_common.audio.pcm import Remark
from penstock_common.results import Word
from penstock_common.sentences import sentences
from penstock_common.subtitles import Cue, cues, spoken_parts, srt, vtt
from penstock_common.writing import blank_between, join_texts
from penstock_gateway.errors import GatewayError
from penstock_gateway.http.openai_objects import error_body, logprob, logprobs
from penstock_gateway.openai.request import TranscriptionForm, TranscriptionRequest
from penstock_gateway.stream.events import Event, Final, speaker_turns, split

JSON = "application/json"
_MEDIA_TYPES = {"json": JSON, "verbose_json": JSON, "diarized_json": JSON, "vtt": "text/vtt"}
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which clients skip."""


@dataclass(frozen=True, slots=True)
class Transcription:
    """Recognition result of one recording."""

    finals: Sequence[Final]
    duration_s: float
    remarks: Sequence[Remark] = ()
    end_s: float | None = None
    """The end of the audio in its file."""
    channels: Sequence[str] = ()
    """Names of the channels that are recognized each by itself."""

    def channel(self, final: Final) -> dict[str, Any]:
        """The field of the channel, where each is recognized."""
        return {"channel": self.channels[final.channel - 1]} if self.channels else {}

    @property
    def text(self) -> str:
        """The texts of all segments."""
        return join_texts(final.text for final in self.finals)


def usage(duration_s: float) -> dict[str, Any]:
    """OpenAI's account of the audio, in started seconds."""
    return {"type": "duration", "seconds": math.ceil(duration_s)}


def media_type(request: TranscriptionRequest) -> str:
    """The media type of the reply."""
    if request.form.stream:
        return "text/event-stream"
    return _MEDIA_TYPES.get(request.form.response_format, "text/plain")


def render(transcription: Transcription, request: TranscriptionRequest) -> str:
    """The reply, unless it is a stream."""
    form = request.form.response_format
    if form == "text":
        return transcription.text + "\n"
    if form in ("srt", "vtt"):
        write = srt if form == "srt" else vtt
        return write(_cues(transcription, request))
    body = _BODIES[form](transcription, request)
    return json.dumps(body, ensure_ascii=False)


def error_document(error: GatewayError) -> bytes:
    """The JSON of a reply that has begun before its job failed."""
    return json.dumps({"error": error_body(error)}, ensure_ascii=False).encode()


def _json(transcription: Transcription, request: TranscriptionRequest) -> dict[str, Any]:
    body: dict[str, Any] = {"text": transcription.text, "usage": usage(transcription.duration_s)}
    if transcription.remarks:
        body["remarks"] = [remark.document for remark in transcription.remarks]
    if request.form.include:
        body["logprobs"] = logprobs([word for final in transcription.finals for word in final.words])
    return body


def _verbose_json(transcription: Transcription, request: TranscriptionRequest) -> dict[str, Any]:
    spoken = [final for final in transcription.finals if final.text]
    body: dict[str, Any] = {
        "task": "transcribe",
        "language": request.language,
        "duration": round(transcription.duration_s, 3),
        "text": transcription.text,
        "usage": usage(transcription.duration_s),
        "remarks": [remark.document for remark in transcription.remarks],
    }
    if "segment" in request.form.timestamp_granularities:
        parts = [
            part
            for final in spoken
            for turn in speaker_turns(final)
            for part in split(turn, sentences(turn.words, turn.language or request.language))
        ]
        body["segments"] = [
            _segment(index, part) | _named(request.form, part.words) | transcription.channel(part)
            for index, part in enumerate(parts)
        ]
    if "word" in request.form.timestamp_granularities:
        body["words"] = [
            {"word": word.text, "start": word.start_ms / 1000, "end": word.end_ms / 1000}
            | _named(request.form, [word])
            | transcription.channel(final)
            for final in spoken
            for word in final.words
        ]
    return body


def _diarized_json(transcription: Transcription, request: TranscriptionRequest) -> dict[str, Any]:
    turns = [turn for final in transcription.finals if final.text for turn in speaker_turns(final)]
    return {
        "task": "transcribe",
        "duration": round(transcription.duration_s, 3),
        "text": transcription.text,
        "segments": [
            speaker_segment(index, turn, request.form) | transcription.channel(turn) for index, turn in enumerate(turns)
        ],
        "usage": usage(transcription.duration_s),
        **({"remarks": [remark.document for remark in transcription.remarks]} if transcription.remarks else {}),
    }


_BODIES = {"json": _json, "verbose_json": _verbose_json, "diarized_json": _diarized_json}


def speaker_segment(index: int, turn: Final, form: TranscriptionForm) -> dict[str, Any]:
    """A turn as OpenAI has it; also an event of a stream."""
    return {
        "type": "transcript.text.segment",
        "id": f"seg_{index}",
        "start": turn.words[0].start_ms / 1000 if turn.words else turn.end_s,
        "end": turn.words[-1].end_ms / 1000 if turn.words else turn.end_s,
        "text": turn.text,
        "speaker": form.speaker_name(turn.words[0].speaker if turn.words else None),
    }


def _named(form: TranscriptionForm, words: Sequence[Word]) -> dict[str, Any]:
    """The field of the speaker, where it is asked for."""
    if form.asked_speakers is None or not words:
        return {}
    return {"speaker": form.speaker_name(words[0].speaker)}


def _segment(index: int, final: Final) -> dict[str, Any]:
    """A segment from its first word to its last one. Whisper's own fields have neutral values."""
    encoded = final.text.encode()
    confidences = [logprob(word) for word in final.words]
    return {
        "id": index,
        "seek": 0,
        "start": final.words[0].start_ms / 1000 if final.words else final.end_s,
        "end": final.words[-1].end_ms / 1000 if final.words else final.end_s,
        "text": final.text,
        "tokens": [],
        "temperature": 0.0,
        "avg_logprob": sum(confidences) / len(confidences) if confidences else 0.0,
        "compression_ratio": round(len(encoded) / len(zlib.compress(encoded)), 3),
        "no_speech_prob": 0.0,
    }


def _cues(transcription: Transcription, request: TranscriptionRequest) -> list[Cue]:
    """The cues of each channel, in the order of their times."""
    form, found = request.form, list[Cue]()
    for channel, name in enumerate([None, *transcription.channels]):
        segments = [
            (final.words, final.language or request.language)
            for final in transcription.finals
            if final.channel == channel
        ]
        parts = spoken_parts(segments, name, form.speaker_name if form.asked_speakers is not None else lambda _: None)
        found += cues(parts, transcription.end_s)
    return sorted(found, key=lambda cue: cue.start_ms)


class TranscriptEvents:
    """The events of one stream: only text that cannot change. The deltas, one after another, are the text of `done`."""

    def __init__(self, has_logprobs: bool, form: TranscriptionForm | None = None):
        """form: of a request whose turns of speakers are events, too."""
        self._has_logprobs, self._form = has_logprobs, form
        self._turns = 0
        self._text = ""
        self._words: list[Word] = []
        self._sent_chars = self._sent_words = 0
        """Characters and words of the current segment that were sent."""

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
