"""Parses `--decoder NAME[:OPTION=VALUE,...]`, the search of an evaluation."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import SettingError
from penstock.pipeline.options import decoding_config
from penstock.pipeline.options.decoding_config import BOOSTED_DECODERS, DECODERS, DECODING_SETTINGS, DecodingConfig
from penstock.scoring.boosting.phrases import MAX_BOOST

_SHORT = {"beam": "beam_size"}


@dataclass(frozen=True)
class DecoderChoice:
    """A search and its options; `str` is the text from the command line."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Values by the names of `DECODING_SETTINGS`."""
    boost: float | None = None
    """Boost of the phrases of an utterance; None for the default."""
    text: str = ""

    def __str__(self) -> str:
        return self.text or self.name

    @property
    def decoding(self) -> DecodingConfig:
        """Options of the recognizer."""
        return DecodingConfig(**self.options)

    @property
    def stream_options(self) -> dict[str, object]:
        """Options of every stream, sent with its first request."""
        return {"decoder": self.name}

    def options_with(self, boosted_phrases: Sequence[object], language: str | None = None) -> dict[str, object]:
        """Options of the stream of an utterance with these phrases, which a decoder without boosting does not get.

        language: None for the recognizer's default.
        """
        options = self.stream_options | ({} if language is None else {"language": language})
        if not boosted_phrases or self.name not in BOOSTED_DECODERS:
            return options
        boost = {} if self.boost is None else {"boost": self.boost}
        return options | {"boosted_phrases": list(boosted_phrases)} | boost


GREEDY = DecoderChoice(decoding_config.GREEDY)


def parse_decoder(text: str) -> DecoderChoice:
    """Parses "greedy" or "name:option=value,option=value"; SettingError names the accepted values."""
    name, has_options, rest = text.partition(":")
    if name not in DECODERS:
        raise SettingError(f"decoder {text!r}: {name!r} is not known; known: {', '.join(DECODERS)}")
    settings = {setting.name: setting for setting in DECODING_SETTINGS if name in setting.decoders}
    options: dict[str, Any] = {}
    boost: float | None = None
    for part in rest.split(",") if has_options else []:
        option, _, value = part.partition("=")
        if option == "boost" and name in BOOSTED_DECODERS:
            if boost is not None:
                raise SettingError(f"decoder {text!r}: 'boost' is given twice")
            boost = _boost(text, value)
            continue
        names = (_SHORT.get(option, option), f"{name}_{option}")  # "beam" of wfst is "wfst_beam"
        setting = next((settings[known] for known in names if known in settings), None)
        if setting is None:
            raise SettingError(
                f"decoder {text!r}: {option!r} is not an option of {name}; options: {', '.join(settings)}"
            )
        if setting.name in options:
            raise SettingError(f"decoder {text!r}: {option!r} is given twice")
        try:
            options[setting.name] = setting.parse(value)
        except ValueError as error:
            raise SettingError(f"decoder {text!r}: {option}: {value!r}: {error}") from None
    if "lm" in options and "lm_weight" not in options:
        raise SettingError(f"decoder {text!r}: lm needs lm_weight=W, which is 0 by default")
    return DecoderChoice(name, options, boost, text)


def _boost(text: str, value: str) -> float:
    with contextlib.suppress(ValueError):
        if abs(boost := float(value)) <= MAX_BOOST:
            return boost
    raise SettingError(f"decoder {text!r}: boost: {value!r}; accepted: numbers from -{MAX_BOOST:g} to {MAX_BOOST:g}")
