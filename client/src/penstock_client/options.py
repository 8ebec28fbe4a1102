"""The decoding options of a stream, checked when they are made. What depends on the server is checked there."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, get_args

from penstock_client.protocol import Parameter

LanguageTags = Literal["remove", "keep"]
UnknownPhrases = Literal["reject", "ignore"]
EndpointState = Literal["reset", "carry"]
Decoder = Literal["greedy", "alsd", "aes", "ctc", "ctc_beam", "wfst"]
"""The searches; `Client.server_info` names those of a server."""
_BEAMS: tuple[Decoder, ...] = ("alsd", "aes", "ctc_beam")
_N_BEST: tuple[Decoder, ...] = (*_BEAMS, "wfst")
ENDPOINTS = ("endpoint_silence_ms", "endpoint_no_speech_ms", "endpoint_longest_s")
"""The options that end segments."""
BoostedPhrase = str | tuple[str, float]
"""A phrase of one or more words, alone or with its own boost."""

_MAX_INT = 2**31 - 1  # the limit of any server; its own limits are lower


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Options of one stream; the defaults are the server's. Raises ValueError for an invalid value."""

    decoder: Decoder | None = None
    """The search; by default "greedy", or "ctc" if the model has no transducer."""
    beam_size: int | None = None
    """Beam size of "alsd", "aes" and "ctc_beam": 1 to the server's beam size, which is the default."""
    n_best: int = 0
    """Number of alternatives in a final result: up to the beam size, with "wfst" up to 32, else 0."""
    lm_weight: float | None = None
    """Weight of the server's language model, with "wfst" of its graph, at least 0. Without a model only 0 is accepted.
    """
    ilm_alpha: float | None = None
    """Weight of a factorized model's internal language model inside the softmax over labels: 0 to 2. Other models have
    none and accept only 1."""
    ilm_beta: float | None = None
    """Weight of its log-probability, added to each label's score: 0 to 10. Other models accept only 0."""
    boosted_phrases: Sequence[BoostedPhrase] = ()
    """Word boosting (contextual biasing): phrases that become more likely. Stored as a tuple."""
    boost: float | None = None
    """Boost of phrases without their own: added to the log score per token; negative values suppress (server: 2)."""
    unknown_phrases: UnknownPhrases | None = None
    """Phrases that the model cannot write: "reject" (the server's default), or "ignore": they are lowered or stripped
    of marks where that helps, else left out."""
    language: str | None = None
    """One of `ServerInfo.languages`, for a model with a choice; it holds for the whole stream."""
    language_tags: LanguageTags | None = None
    """The model's language tags, such as `<en-US>`, in text and words: "remove" (the server's default) or "keep"."""
    endpoint_silence_ms: int | None = None
    """Endpointing: time without words, after a word, that ends a segment, 200 to 10,000; 0: off."""
    endpoint_no_speech_ms: int | None = None
    """Duration of a segment without words, 200 to 60,000; 0: off."""
    endpoint_longest_s: int | None = None
    """Duration after which any short pause ends a segment, 5 to 120; 0: off."""
    endpoint_state: EndpointState | None = None
    """The decoder's state at these endpoints. "reset": each segment is decoded anew. "carry": the search continues,
    as suits a model that writes punctuation and capitals. The server's default follows from the model's vocabulary."""

    def __post_init__(self) -> None:
        if self.decoder is not None and self.decoder not in get_args(Decoder):
            raise ValueError(f"decoder is {self.decoder!r}, expected {_either(get_args(Decoder))}")
        if self.beam_size is not None:
            self._set("beam_size", _whole("beam_size", self.beam_size, minimum=1))
        self._set("n_best", _whole("n_best", self.n_best, minimum=0))
        self._check_beam()
        for name in ("lm_weight", "ilm_alpha", "ilm_beta"):
            if (weight := getattr(self, name)) is not None:
                self._set(name, _finite(name, weight, minimum=0))
        if self.boost is not None:
            self._set("boost", _finite("boost", self.boost))
        self._set("boosted_phrases", _phrases(self.boosted_phrases))
        if self.unknown_phrases is not None and self.unknown_phrases not in get_args(UnknownPhrases):
            accepted = _either(get_args(UnknownPhrases))
            raise ValueError(f"unknown_phrases is {self.unknown_phrases!r}, expected {accepted}")
        if self.language is not None and (not isinstance(self.language, str) or not self.language):
            raise ValueError(f"language is {self.language!r}, expected the name of a language, as 'en-US'")
        if self.language_tags is not None and self.language_tags not in get_args(LanguageTags):
            raise ValueError(f"language_tags is {self.language_tags!r}, expected {_either(get_args(LanguageTags))}")
        for name in ENDPOINTS:
            if (value := getattr(self, name)) is not None:
                self._set(name, _whole(name, value, minimum=0))
        if self.endpoint_state is not None and self.endpoint_state not in get_args(EndpointState):
            raise ValueError(f"endpoint_state is {self.endpoint_state!r}, expected {_either(get_args(EndpointState))}")

    def parameters(self) -> dict[str, Parameter]:
        """The Triton parameters of the stream's first request, without defaults; phrases are JSON."""
        phrases = json.dumps(self.boosted_phrases) if self.boosted_phrases else None
        chosen: dict[str, Parameter | None] = {
            "decoder": self.decoder,
            "beam_size": self.beam_size,
            "n_best": self.n_best or None,
            "lm_weight": self.lm_weight,
            "ilm_alpha": self.ilm_alpha,
            "ilm_beta": self.ilm_beta,
            "boosted_phrases": phrases,
            "boost": self.boost,
            "unknown_phrases": self.unknown_phrases,
            "language": self.language,
            "language_tags": self.language_tags,
            **{name: getattr(self, name) for name in ENDPOINTS},
            "endpoint_state": self.endpoint_state,
        }
        return {name: value for name, value in chosen.items() if value is not None}

    def _check_beam(self) -> None:
        """Rejects beam options that contradict each other."""
        for name, value, decoders in (("beam_size", self.beam_size, _BEAMS), ("n_best", self.n_best, _N_BEST)):
            if value and self.decoder not in decoders:
                chosen = f"decoder {self.decoder!r}" if self.decoder else "the default decoder"
                raise ValueError(f"{name} is {value}, but {chosen} has none: it requires {_either(decoders)}")
        if self.beam_size is not None and self.n_best > self.beam_size:
            raise ValueError(f"n_best is {self.n_best}, expected at most the beam size, {self.beam_size}")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the class is frozen


def _either(names: Sequence[str]) -> str:
    *others, last = map(repr, names)
    return f"{', '.join(others)} or {last}"


def _whole(name: str, value: object, minimum: int) -> int:
    """The value as an int, which is a parameter type; NumPy's integers are not."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not minimum <= int(value) <= _MAX_INT:
        raise ValueError(f"{name} is {value!r}, expected an integer from {minimum} to {_MAX_INT}")
    return int(value)


def _finite(name: str, value: object, minimum: float = -math.inf) -> float:
    """The value as a float, which is another parameter type than an int."""
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # an int too large for a float
            number = float(value)
    if not math.isfinite(number) or number < minimum:
        expected = "a finite number" if minimum == -math.inf else f"a finite number from {minimum:g}"
        raise ValueError(f"{name} is {value!r}, expected {expected}")
    return number


def _phrases(phrases: object) -> tuple[BoostedPhrase, ...]:
    if isinstance(phrases, str) or not isinstance(phrases, Sequence):
        raise ValueError(f"boosted_phrases is {type(phrases).__name__}, expected a list of phrases")
    return tuple(_phrase(number, phrase) for number, phrase in enumerate(phrases, start=1))


def _phrase(number: int, phrase: object) -> BoostedPhrase:
    name = f"boosted phrase {number}"
    if isinstance(phrase, str):
        return _text(name, phrase)
    if not isinstance(phrase, Sequence) or len(phrase) != 2:
        raise ValueError(f"{name} is {phrase!r}, expected text or (text, boost)")
    text, boost = phrase
    return _text(name, text), _finite(f"boost of {name}", boost)


def _text(name: str, text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{name} is {text!r}, expected one or more words")
    return text
