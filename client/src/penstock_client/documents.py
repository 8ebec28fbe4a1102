"""Parts of a transcript as JSON, which `penstock-client --json` and `penstock transcribe` write alike.

The words and alternatives of client and core are classes of their own with the same attributes.
"""

from collections.abc import Iterable
from typing import Any

_DIGITS = 4
"""Of confidences and scores, which arrive as float32."""


def word_document(word: Any) -> dict[str, Any]:
    """A word; times in ms from the start of the audio. With a speaker where that is known."""
    confidence = None if word.confidence is None else round(word.confidence, _DIGITS)
    who = getattr(word, "speaker", None)
    speaker = {} if who is None else {"speaker": who}
    return {"word": word.text, "start_ms": word.start_ms, "end_ms": word.end_ms, "confidence": confidence, **speaker}


def alternative_documents(alternatives: Iterable[Any]) -> list[dict[str, Any]]:
    """The alternatives of a segment, best first."""
    return [
        {"text": each.text, "score": round(each.score, _DIGITS), "words": list(map(word_document, each.words))}
        for each in alternatives
    ]


def segment_document(text: str, language: str, words: int, tokens: int, alternatives: Iterable[Any]) -> dict[str, Any]:
    """A segment; `words` and `tokens` are numbers: they follow those of the segments before it."""
    return {
        "text": text,
        "language": language,
        "words": words,
        "tokens": tokens,
        "alternatives": alternative_documents(alternatives),
    }
