"""The languages that a model offers to streams, and the default. Does not import torch."""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import SettingError, shown
from penstock.model.config import ModelConfig
from penstock.pipeline.options.decoding_config import DecodingConfig

_NAMED_IN_ERRORS = 10


@dataclass(frozen=True)
class LanguageOffer:
    """The languages that a stream may choose from; none for a model without language prompts."""

    prompts: Mapping[str, int]
    """The prompt of each."""
    default: str = ""
    """That of a stream that names none; "" without a choice."""

    @property
    def names(self) -> tuple[str, ...]:
        """The languages, in the checkpoint's order."""
        return tuple(self.prompts)

    def prompt(self, name: str) -> int:
        """The prompt of an offered language; 0 for a model without prompts."""
        return self.prompts.get(name, 0)

    def problem_with(self, name: object) -> str | None:
        """Why a stream cannot have language `name`, and which it can have; None if it can."""
        if isinstance(name, str) and name in self.prompts:
            return None
        if not self.prompts:
            return f"language is {shown(name)}, but the model has no language prompts; accepted: nothing"
        others = len(self.prompts) - _NAMED_IN_ERRORS
        accepted = ", ".join(self.names[:_NAMED_IN_ERRORS]) + (f" and {others} others" if others > 0 else "")
        return f"language is {shown(name)}; accepted: {accepted}"


NO_LANGUAGES = LanguageOffer({})


def offer_languages(model: ModelConfig, decoding: DecodingConfig) -> LanguageOffer:
    """The languages of a model; SettingError for a default that is none of them."""
    prompt = model.prompt
    offer = NO_LANGUAGES if prompt is None else LanguageOffer(prompt.languages, prompt.default)
    if decoding.language is None:
        return offer
    if problem := offer.problem_with(decoding.language):
        raise SettingError(problem)
    return LanguageOffer(offer.prompts, decoding.language)
