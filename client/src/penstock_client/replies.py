"""Reads a server's replies: the results that they hold, or the exception for an error. No network, no threads."""

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any

from penstock_common.errors import (
    ProtocolError,
    ServerDrainingError,
    ServerFullError,
    SpeakersNotServedError,
    StreamError,
    StreamId,
    StreamNotOpenError,
    split_code,
)
from penstock_common.results import Alternative, Result, Word, with_speakers


def parse_results(stream_id: StreamId, values: Callable[[str], list[Any] | None]) -> list[Result]:
    """The results that a reply's outputs hold; `values` returns an output's values by name, None where it is missing.

    Confidences, alternatives, the language, stable characters, speakers and, with one result, the counts may be
    missing: not every model of a Penstock server sends them.

    Raises ProtocolError for any other deviation, also of a value.
    """
    try:
        return _parse(partial(_row, values))
    except UNREADABLE as error:
        raise ProtocolError(stream_id, f"the server's reply cannot be read: {error}") from error


UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError, struct.error)
"""Errors from reading values of the wrong kind; deeply nested JSON, too."""


def _parse(row: Callable[..., list[Any]]) -> list[Result]:
    segments = _whole(row, "SEGMENT")
    heads = zip(
        segments, row("TEXT"), row("IS_FINAL"), row("AUDIO_PROCESSED"), row("LANGUAGE", [b""] * len(segments)),
        _whole(row, "STABLE_CHARS", [0] * len(segments)), strict=True,
    )  # fmt: skip
    words, alternatives = _words(row), _alternatives(row)
    tokens, timestamps = _whole(row, "TOKENS"), _whole(row, "TIMESTAMPS")
    if len(tokens) != len(timestamps):
        raise ValueError(f"{len(tokens)} TOKENS but {len(timestamps)} TIMESTAMPS")
    counts = _whole(row, "LIST_COUNTS", [len(words), len(tokens), len(alternatives)])
    if len(counts) != 3 * len(segments):
        raise ValueError(f"LIST_COUNTS is {counts} for {len(segments)} results")
    if (sum(counts[::3]), sum(counts[1::3])) != (len(words), len(tokens)):
        raise ValueError(f"LIST_COUNTS is {counts} for {len(words)} WORDS and {len(tokens)} TOKENS")
    speakers = _speakers(row, len(segments))
    results, word, token, alternative = [], 0, 0, 0
    for i, (segment, content, is_final, audio_processed_s, language, stable_chars) in enumerate(heads):
        text = content.decode()
        if type(is_final) is not bool or not 0 <= audio_processed_s < math.inf or stable_chars > len(text):
            found = f"IS_FINAL {is_final}, AUDIO_PROCESSED {audio_processed_s}, STABLE_CHARS {stable_chars}"
            raise ValueError(f"a text of {len(text)} characters has {found}")
        n_words, n_tokens, n_alternatives = counts[3 * i : 3 * i + 3]
        new_words = words[word : word + n_words]
        if speakers[i]:
            if n_words > len(speakers[i]) or not is_final:
                raise ValueError(f"{len(speakers[i])} WORD_SPEAKERS for {n_words} words, with IS_FINAL {is_final}")
            new_words = with_speakers(new_words, speakers[i][len(speakers[i]) - n_words :])
        results.append(
            Result(
                segment=segment,
                text=text,
                is_final=is_final,
                audio_processed_s=audio_processed_s,
                new_words=tuple(new_words),
                new_tokens=tuple(tokens[token : token + n_tokens]),
                new_timestamps=tuple(timestamps[token : token + n_tokens]),
                alternatives=tuple(alternatives[alternative : alternative + n_alternatives]),
                language=language.decode(),
                stable_chars=stable_chars,
                word_speakers=speakers[i],
            )
        )
        word, token, alternative = word + n_words, token + n_tokens, alternative + n_alternatives
    return results


def _words(row: Callable[..., list[Any]]) -> list[Word]:
    words = row("WORDS")
    confidences = row("WORD_CONFIDENCE", [None] * len(words))
    rows = zip(words, _whole(row, "WORD_START_MS"), _whole(row, "WORD_END_MS"), confidences, strict=True)
    return [_word(word.decode(), *rest) for word, *rest in rows]


def _speakers(row: Callable[..., list[Any]], results: int) -> list[tuple[int | None, ...]]:
    """For each result the speakers of all words of its segment; () where it has none."""
    counts, entries = _whole(row, "SPEAKER_COUNTS", [0] * results), _whole(row, "WORD_SPEAKERS", [])
    if len(counts) != results or sum(counts) != len(entries):
        raise ValueError(f"SPEAKER_COUNTS is {counts} for {results} results and {len(entries)} WORD_SPEAKERS")
    left = iter(entries)
    return [tuple(speaker or None for speaker in islice(left, count)) for count in counts]


def _word(text: Any, start_ms: Any, end_ms: Any, confidence: Any = None, speaker: Any = None) -> Word:
    """Raises ValueError or TypeError for values that no word has."""
    if speaker is not None and (type(speaker) is not int or speaker < 1):
        raise ValueError(f"a word has the speaker {speaker!r}")
    has_times = type(start_ms) is int and type(end_ms) is int and start_ms >= 0 and end_ms >= 0
    if not isinstance(text, str) or not has_times or not (confidence is None or 0 <= confidence <= 1):
        raise ValueError(f"a word has the times {start_ms!r}, {end_ms!r} and the confidence {confidence!r}")
    return Word(text, start_ms, end_ms, confidence, speaker)


def _alternatives(row: Callable[..., list[Any]]) -> list[Alternative]:
    """Empty where they were not requested."""
    texts = row("ALTERNATIVES", [])
    rows = zip(texts, row("ALTERNATIVE_SCORES", []), row("ALTERNATIVE_WORDS", [b"[]"] * len(texts)), strict=True)
    alternatives = [
        Alternative(text.decode(), score, tuple(_word(*word) for word in json.loads(words)))
        for text, score, words in rows
    ]
    if not all(math.isfinite(alternative.score) for alternative in alternatives):
        raise ValueError("a score of ALTERNATIVE_SCORES is not finite")
    return alternatives


def _whole(row: Callable[..., list[Any]], name: str, default: list[Any] | None = None) -> list[int]:
    """The values of an output, as `_row`. Raises ValueError unless they are integers from 0; all have the same type."""
    values = row(name, default)
    if values and (type(values[0]) is not int or min(values) < 0):
        raise ValueError(f"{name} is {min(values)!r}; accepted: integers from 0")
    return values


def _row(values: Callable[[str], list[Any] | None], name: str, default: list[Any] | None = None) -> list[Any]:
    """The values of an output, or its default. Raises KeyError for a missing output without a default."""
    if (entries := values(name)) is not None:
        return entries
    if default is None:
        raise KeyError(f"output {name} is missing")
    return default


STREAM_ERRORS: Mapping[str, type[StreamError]] = {
    "STREAM_LIMIT": ServerFullError,
    "PHRASE_MEMORY_FULL": ServerFullError,
    "AUDIO_MEMORY_FULL": ServerFullError,
    "SERVER_DRAINING": ServerDrainingError,
    "SPEAKERS_NOT_SERVED": SpeakersNotServedError,
    "STREAM_NOT_OPEN": StreamNotOpenError,
    "STREAM_LOST": StreamError,
    "AUDIO_INVALID": StreamError,
    "AUDIO_TOO_LONG": StreamError,
    "OPTION_INVALID": StreamError,
    "PHRASES_INVALID": StreamError,
    "REQUEST_INVALID": StreamError,
}
"""The exception for each code of a server's error. gRPC's streaming RPC has no status, so the message has the code."""

STOPPING = re.compile(
    r"Server is stopping, |Server not ready|"
    r"Request for unknown model: '[^']*' (has no available versions|version \S+ is not at ready state)"
)
"""Triton's messages in the last seconds of a server, whose models are unloaded before its connections end."""


def stream_error(stream_id: StreamId, message: str) -> StreamError:
    """The exception for a server's error message. Triton's own errors have no code."""
    code, text = split_code(message)
    if code:
        return STREAM_ERRORS.get(code, StreamError)(stream_id, text, code)
    if STOPPING.match(text):
        return ServerDrainingError(stream_id, text)
    return StreamError(stream_id, text)
