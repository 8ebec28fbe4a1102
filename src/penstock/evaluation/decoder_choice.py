"""Parses `--decoder NAME[:OPTION=VALUE,...]`, the search of an evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import SettingError
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock_client import options as stream_options
from penstock_client.options import BOOSTED_DECODERS, StreamOptions


@dataclass(frozen=True)
class DecoderChoice:
    """A search and its options; `str` is the text from the command line."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Values by the names of `DecodingConfig`."""
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


GREEDY = DecoderChoice(stream_options.GREEDY)


def parse_decoder(text: str) -> DecoderChoice:
    """Parses "greedy" or "name:option=value,option=value"; SettingError names the accepted values."""
    try:
        name, options = stream_options.parse_decoder(text, (*DecodingConfig.options(), StreamOptions.option("boost")))
    except ValueError as error:
        raise SettingError(str(error)) from None
    if "lm" in options and "lm_weight" not in options:
        raise SettingError(f"decoder {text!r}: lm needs lm_weight=W, which is 0 by default")
    if options.get("lm_weight") and "lm" not in options:
        raise SettingError(f"decoder {text!r}: lm_weight needs lm=FILE")
    boost = options.pop("boost", None)
    return DecoderChoice(name, options, boost, text)


def sweep_decoders(decoders: Sequence[str], sweep: str | None) -> list[str]:
    """The texts of each decoder with each value of "option=value,value", without repetitions; raises SettingError."""
    if sweep is None:
        return list(dict.fromkeys(decoders))
    option, _, values = sweep.partition("=")
    if not option or not all(values.split(",")):
        raise SettingError(f"--sweep is {sweep!r}; accepted: OPTION=VALUE,VALUE,...")
    given = [f"{text}{',' if ':' in text else ':'}" for text in decoders]
    return list(dict.fromkeys(f"{text}{option}={value}" for text in given for value in values.split(",")))
