"""What a stream may choose with its start, checked by name. One home for the options' names, defaults and limits."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.decoding_config import LARGEST_LM_WEIGHT, DecodingConfig
from penstock.errors import StreamError, StreamErrorKind, shown
from penstock.fusion.phrase_list import LARGEST_BOOST, PhraseList

GREEDY = "greedy"
BEAM_DECODERS = ("alsd", "aes")
DECODERS = (GREEDY, *BEAM_DECODERS)
DEFAULT_BOOST = 2.0
EMPTY_LIST = PhraseList(())
FINALIZE = "finalize"
"""Not an option: the parameter that any request may have, true where it ends a segment."""
_NAMES = ("decoder", "beam_size", "n_best", "lm_weight", "boosted_phrases", "boost")


@dataclass(frozen=True)
class StreamOptions:
    """One stream's choice."""

    decoder: str = GREEDY
    beam_size: int = 1
    """K; 1 for greedy."""
    n_best: int = 0
    """Alternatives that come with the final result."""
    lm_weight: float = 0.0
    phrases: PhraseList = field(default=EMPTY_LIST)


def parse_stream_options(options: Mapping[str, Any], config: DecodingConfig) -> StreamOptions:
    """Reads the parameters of a stream's start; StreamError INVALID_ARGUMENT names the wrong one and what is accepted.

    decoder: one of `DECODERS`; beam_size, n_best: integers, with a beam; lm_weight: 0 .. 10; boosted_phrases: a JSON
    list of phrases or of [phrase, boost] pairs, as text or already read; boost: of phrases that name none.
    """
    unknown = sorted(map(shown, set(options) - set(_NAMES)))
    if unknown:
        names = ", ".join(unknown[:5]) + (" and others" if len(unknown) > 5 else "")
        raise _refusal(f"{names} is not an option of the stream start; known: {', '.join(_NAMES)}")
    decoder = options.get("decoder", GREEDY)
    if decoder not in DECODERS:
        raise _refusal(f"decoder {shown(decoder)} is not known; known: {', '.join(DECODERS)}")
    beam_size, n_best = _beam(options, decoder, config)
    return StreamOptions(decoder, beam_size, n_best, _lm_weight(options, config), _phrases(options))


def _beam(options: Mapping[str, Any], decoder: str, config: DecodingConfig) -> tuple[int, int]:
    if decoder == GREEDY:
        for name in ("beam_size", "n_best"):
            if name in options:
                raise _refusal(f"{name} needs decoder {' or '.join(BEAM_DECODERS)}; the stream's is {decoder}")
        return 1, 0
    beam_size = _whole(options, "beam_size", config.beam_size, 1, config.beam_size)
    return beam_size, _whole(options, "n_best", 0, 0, beam_size)


def _lm_weight(options: Mapping[str, Any], config: DecodingConfig) -> float:
    weight = _real(options, "lm_weight", config.lm_weight, 0.0, LARGEST_LM_WEIGHT)
    if weight and not config.lm:
        raise _refusal(f"lm_weight is {weight:g}, but no language model is loaded; accepted: 0")
    return weight


def _phrases(options: Mapping[str, Any]) -> PhraseList:
    boost = _real(options, "boost", DEFAULT_BOOST, -LARGEST_BOOST, LARGEST_BOOST)
    if "boosted_phrases" not in options:
        if "boost" in options:
            raise _refusal("boost is given without boosted_phrases")
        return EMPTY_LIST
    given = options["boosted_phrases"]
    accepted = 'accepted: a JSON list as ["phrase", ["phrase", boost]]'
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise _refusal(f"boosted_phrases is not JSON: {error}; {accepted}") from error
    if not isinstance(given, list | tuple):
        raise _refusal(f"boosted_phrases is {type(given).__name__}; {accepted}")
    pairs = [(entry, boost) if isinstance(entry, str) else entry for entry in given]
    for number, pair in enumerate(pairs, start=1):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise _refusal(f"boosted_phrases: entry {number} is {shown(pair)}; {accepted}")
    return PhraseList(tuple(pair) for pair in pairs)


def _whole(options: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _refusal(f"{name} is {shown(value)}; accepted: whole numbers from {low} to {high}")
    return value


def _real(options: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _refusal(f"{name} is {shown(value)}; accepted: numbers from {low:g} to {high:g}")
    return float(value)


def _refusal(message: str) -> StreamError:
    return StreamError(StreamErrorKind.INVALID_ARGUMENT, message)
