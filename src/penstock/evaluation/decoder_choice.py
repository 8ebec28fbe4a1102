"""`--decoder NAME[:OPTION=VALUE,...]`: which search an evaluation uses. The one place that knows the names.

A new search is one more line in `DECODERS`, and in `recognizer_arguments` what the recogniser is to be told.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from penstock import settings
from penstock.decoding_config import DecodingConfig
from penstock.errors import PenstockError
from penstock.settings import Setting

_Options = dict[str, Callable[[str], object]]


def _of(*chosen: Setting) -> _Options:
    """Options that are called and read like the server's settings."""
    return {setting.name: partial(_read, setting) for setting in chosen}


def _read(setting: Setting, text: str) -> object:
    try:
        return setting.parse(text)
    except ValueError:
        raise ValueError(f"accepted: {setting.accepted}") from None


_FUSION: _Options = {"lm": str, "lm_weight": float}
_BEAM: _Options = {"beam": int, **_FUSION, **_of(settings.LM_FUSION, settings.LENGTH_NORMALISATION)}
_AES: _Options = _of(settings.AES_EXPANSIONS, settings.AES_MARGIN, settings.AES_EXTRA_LABELS)
_MAX_SYMBOLS: _Options = _of(settings.MAX_SYMBOLS)

DECODERS: dict[str, _Options] = {
    "greedy": _FUSION | _MAX_SYMBOLS,
    "alsd": _BEAM | _MAX_SYMBOLS,
    "aes": _BEAM | _AES,
}
"""Name -> its options, each with the function that turns the text after `=` into a value or raises ValueError."""


@dataclass(frozen=True)
class DecoderChoice:
    """A search and its options. `str` gives back what the user wrote."""

    name: str
    options: Mapping[str, object] = field(default_factory=dict)
    text: str = ""

    def __str__(self) -> str:
        return self.text or self.name

    @property
    def recognizer_arguments(self) -> dict[str, object]:
        """What to pass to `StreamingRecognizer` besides model, context, streams and device."""
        given = {"beam_size" if name == "beam" else name: value for name, value in self.options.items()}
        return {"decoding": DecodingConfig(**given)} if given else {}

    @property
    def stream_options(self) -> dict[str, object]:
        """What each stream says with its start."""
        return {} if self.name == "greedy" else {"decoder": self.name}


GREEDY = DecoderChoice("greedy")


def parse_decoder(text: str) -> DecoderChoice:
    """Reads "greedy", or in general "name:option=value,option=value"; PenstockError says what is accepted."""
    name, has_options, rest = text.partition(":")
    if name not in DECODERS:
        raise PenstockError(f"decoder {text!r}: {name!r} is not known; known: {', '.join(DECODERS)}")
    options: dict[str, object] = {}
    for part in rest.split(",") if has_options else []:
        option, has_value, value = part.partition("=")
        if option not in DECODERS[name]:
            known = ", ".join(DECODERS[name]) or "none"
            raise PenstockError(f"decoder {text!r}: {option!r} is not an option of {name}; options: {known}")
        if option in options:
            raise PenstockError(f"decoder {text!r}: {option!r} is given twice")
        try:
            options[option] = DECODERS[name][option](value if has_value else "")
        except ValueError as error:
            raise PenstockError(f"decoder {text!r}: {option}: {value!r}: {error}") from error
    return DecoderChoice(name, options, text)
