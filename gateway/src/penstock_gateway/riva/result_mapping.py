"""Events of a stream -> Riva's results. Knows no sockets."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_client import Word
from penstock_client.writing import blank_between
from penstock_gateway.riva.proto import riva_asr_pb2 as riva
from penstock_gateway.stream.events import Final, Partial, confidence

CHANNEL_TAG = 1  # channels are averaged to one


@dataclass(frozen=True)
class ResultFormat:
    """Result options that a client asked for."""

    language: str
    """Empty where the server chooses."""
    max_alternatives: int
    has_words: bool


def interim_result(event: Partial, form: ResultFormat) -> riva.StreamingRecognitionResult:
    """One result with the segment's text so far; stability is the share of its characters that cannot change."""
    return riva.StreamingRecognitionResult(
        alternatives=[riva.SpeechRecognitionAlternative(transcript=event.text, language_code=_languages(form))],
        is_final=False,
        stability=event.stable_chars / len(event.text) if event.text else 0.0,
        channel_tag=CHANNEL_TAG,
        audio_processed=event.audio_processed_s,
    )


def final_result(event: Final, form: ResultFormat) -> riva.StreamingRecognitionResult:
    """The result of a segment, the best alternative first."""
    return riva.StreamingRecognitionResult(
        alternatives=_alternatives(event, form),
        is_final=True,
        stability=1.0,
        channel_tag=CHANNEL_TAG,
        audio_processed=event.audio_processed_s,
    )


def offline_result(event: Final, form: ResultFormat) -> riva.SpeechRecognitionResult:
    """The same segment in the response of `Recognize`."""
    return riva.SpeechRecognitionResult(
        alternatives=_alternatives(event, form), channel_tag=CHANNEL_TAG, audio_processed=event.audio_processed_s
    )


def is_answer(event: Final) -> bool:
    """True if a client gets a result for the segment: it has text, or the client itself ended it."""
    return bool(event.text) or event.forced


def _alternatives(event: Final, form: ResultFormat) -> list[riva.SpeechRecognitionAlternative]:
    """The text of the segment, then the other alternatives; the list has the best one first."""
    best = _alternative(event.text, event.words, form, form.has_words)
    others = event.alternatives[1 : form.max_alternatives]
    return [best, *(_alternative(other.text, other.words, form, has_words=False) for other in others)]


def _alternative(
    text: str, words: Sequence[Word], form: ResultFormat, has_words: bool
) -> riva.SpeechRecognitionAlternative:
    """Clients join transcripts without a space of their own, so one ends a transcript, but in a script without any."""
    return riva.SpeechRecognitionAlternative(
        transcript=text + blank_between(text, "a"),
        confidence=min(map(confidence, words), default=0.0),
        words=[_word(word, form.language) for word in words] if has_words else (),
        language_code=_languages(form),
    )


def _word(word: Word, language: str) -> riva.WordInfo:
    return riva.WordInfo(
        word=word.text,
        start_time=word.start_ms,
        end_time=word.end_ms,
        confidence=confidence(word),
        speaker_tag=word.speaker or 0,
        language_code=language,
    )


def _languages(form: ResultFormat) -> list[str]:
    return [form.language] if form.language else []
