"""`--decoder NAME[:OPTION=VALUE,...]`: which search an evaluation uses. The one place that knows the names.

A new search is one more line in `DECODERS`, and in `recognizer_arguments` what the recogniser is to be told.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.errors import PenstockError
from penstock.stream_options import DecodingConfig

_FUSION: dict[str, Callable[[str], object]] = {"lm": str, "lm_weight": float}
_BEAM: dict[str, Callable[[str], object]] = {"beam": int, **_FUSION}

DECODERS: dict[str, dict[str, Callable[[str], object]]] = {"greedy": _FUSION, "alsd": _BEAM, "aes": _BEAM}
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
        given = {name: self.options[name] for name in ("lm", "lm_weight") if name in self.options}
        if "beam" in self.options:
            given["beam_size"] = self.options["beam"]
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
