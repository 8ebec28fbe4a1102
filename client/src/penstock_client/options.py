"""What a stream may choose when it starts: decoder, beam, language model weight, phrases. Checked when made.

Knows no network and not what a server was started with: that is for the server to refuse.
"""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, get_args

from penstock_client.protocol import Parameter

Decoder = Literal["greedy", "alsd", "aes"]
BoostedPhrase = str | tuple[str, float]
"""A phrase of one or more words, alone or with its own boost."""

_MOST = 2**31 - 1  # what any server can count to; its own limits are for it to say


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Options of one stream; what is left out is the server's choice. Raises ValueError for a bad value."""

    decoder: Decoder = "greedy"
    beam_size: int | None = None
    """Hypotheses that the beam searches "alsd" and "aes" keep: 1 to the server's beam size, which is the default."""
    n_best: int = 0
    """Alternatives that come with the final result: up to the beam size, 0 with "greedy"."""
    lm_weight: float | None = None
    """Weight of the server's language model, 0 or more; above 0 the server must have one."""
    boosted_phrases: Sequence[BoostedPhrase] = ()
    """What is to be heard more often; kept as a tuple."""
    boost: float | None = None
    """For phrases without their own: natural logarithm added for each token, below 0 for less often (server: 2)."""

    def __post_init__(self) -> None:
        if self.decoder not in get_args(Decoder):
            raise ValueError(f"decoder is {self.decoder!r}, expected 'greedy', 'alsd' or 'aes'")
        if self.beam_size is not None:
            self._set("beam_size", _whole("beam_size", self.beam_size, least=1))
        self._set("n_best", _whole("n_best", self.n_best, least=0))
        self._check_beam()
        if self.lm_weight is not None:
            self._set("lm_weight", _finite("lm_weight", self.lm_weight, least=0))
        if self.boost is not None:
            self._set("boost", _finite("boost", self.boost))
        self._set("boosted_phrases", _phrases(self.boosted_phrases))

    def parameters(self) -> dict[str, Parameter]:
        """The Triton request parameters of the stream's first request: only what was chosen, phrases as JSON text."""
        phrases = json.dumps(self.boosted_phrases) if self.boosted_phrases else None
        chosen: dict[str, Parameter | None] = {
            "decoder": None if self.decoder == "greedy" else self.decoder,
            "beam_size": self.beam_size,
            "n_best": self.n_best or None,
            "lm_weight": self.lm_weight,
            "boosted_phrases": phrases,
            "boost": self.boost,
        }
        return {name: value for name, value in chosen.items() if value is not None}

    def _check_beam(self) -> None:
        """Refuses options of the beam that do not go together."""
        for name, value in (("beam_size", self.beam_size), ("n_best", self.n_best)):
            if value and self.decoder == "greedy":
                raise ValueError(f"{name} is {value}, but decoder 'greedy' has no beam: it goes with 'alsd' and 'aes'")
        if self.beam_size is not None and self.n_best > self.beam_size:
            raise ValueError(f"n_best is {self.n_best}, expected at most the beam size, {self.beam_size}")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # only from __post_init__: the plain form is for classes not frozen


def _whole(name: str, value: object, least: int) -> int:
    """The value as an int: NumPy's and others are whole numbers too, but no parameters."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= _MOST:
        raise ValueError(f"{name} is {value!r}, expected a whole number from {least} to {_MOST}")
    return int(value)


def _finite(name: str, value: object, least: float = -math.inf) -> float:
    """The value as a float, which is another kind of parameter than an int."""
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # an int beyond all floats
            number = float(value)
    if not math.isfinite(number) or number < least:
        expected = "a finite number" if least == -math.inf else f"a finite number from {least:g}"
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
