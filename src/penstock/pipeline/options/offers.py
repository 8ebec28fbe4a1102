"""The decoders and languages that a model offers to streams with a server's settings. Does not import torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock.errors import SettingError, shown
from penstock.model.bundle_files import sha256_of
from penstock.model.card import card_languages
from penstock.model.config import IlmPair, ModelConfig, TransducerConfig
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock_common.options import (
    AUTO,
    CTC,
    CTC_DECODERS,
    DECODERS,
    FIGURE_LANGUAGES,
    FIGURES,
    GREEDY,
    TRANSDUCER_DECODERS,
    WFST,
    WORDS,
    Numbers,
)

if TYPE_CHECKING:
    from penstock.model.bundle import Checkpoint

NO_END_TOKENS = "endpoint_tokens is 'on', but the model has no end tokens; accepted: off"
_NAMED_IN_ERRORS = 10


@dataclass(frozen=True)
class DecoderOffer:
    """The decoders that a stream may choose from."""

    needs: Mapping[str, str]
    """Requirement of each decoder that is not offered, by its name."""
    ilm: Mapping[str, IlmPair] = field(default_factory=dict)
    """Default weights of the internal language model by decoder; empty for a model without one."""
    has_end_tokens: bool = False
    """The model has labels that end segments."""

    @property
    def names(self) -> tuple[str, ...]:
        """The offered decoders, in the order of `DECODERS`."""
        return tuple(name for name in DECODERS if name not in self.needs)

    @property
    def default(self) -> str:
        """The decoder of a stream that names none: greedy search, of the transducer if there is one."""
        return GREEDY if GREEDY in self.names else CTC

    def problem_with(self, name: object) -> str | None:
        """Why a stream cannot have decoder `name`, and which it can have; None if it can."""
        if name in self.names:
            return None
        needed = self.needs.get(name) if isinstance(name, str) else None
        reason = f"is not offered: it needs {needed}" if needed else "is not known"
        return f"decoder {shown(name)} {reason}; offered: {', '.join(self.names)}"

    def alternatives(self, names: Iterable[str]) -> str:
        """Lists the offered ones of `names` for a message: "alsd, aes or ctc_beam"."""
        *others, last = [name for name in names if name in self.names] or ["another model's"]
        return f"{', '.join(others)} or {last}" if others else last


def offer_decoders(model: ModelConfig, decoding: DecodingConfig) -> DecoderOffer:
    """The decoders of a model with these settings.

    SettingError for a graph, weights, kernels or end tokens that no decoder of the model can use.
    """
    needs: dict[str, str] = {}
    if model.transducer is None:
        needs |= dict.fromkeys(TRANSDUCER_DECODERS, "a model with a transducer")
    if model.ctc is None:
        if decoding.graph:
            raise SettingError("graph is given, but the model has no CTC head; accepted: none")
        needs |= dict.fromkeys(CTC_DECODERS, "a model with a CTC head")
    elif not decoding.graph:
        needs[WFST] = "a decoding graph (--graph, for penstock evaluate wfst:graph=FILE)"
    if decoding.endpoint_tokens == "on" and not model.end_tokens:
        raise SettingError(NO_END_TOKENS)
    return DecoderOffer(needs, _ilm_weights(model.transducer, decoding), bool(model.end_tokens))


def without_ilm(name: str, value: float) -> str | None:
    """The error of a weight `ilm_alpha` or `ilm_beta` for a model without an internal language model, or None."""
    neutral = getattr(IlmPair(), name.removeprefix("ilm_"))
    if value == neutral:
        return None
    return f"{name} is {value:g}, but the model has no internal language model; accepted: {neutral:g}"


def _ilm_weights(transducer: TransducerConfig | None, decoding: DecodingConfig) -> dict[str, IlmPair]:
    chosen = {"ilm_alpha": decoding.ilm_alpha, "ilm_beta": decoding.ilm_beta}
    if transducer is None or transducer.ilm_greedy is None or transducer.ilm_beam is None:
        for name, value in chosen.items():
            if value is not None and (problem := without_ilm(name, value)):
                raise SettingError(problem)
        return {}
    if decoding.kernels == "fused":
        raise SettingError(f"kernels is 'fused', but a {transducer.name} has no fused kernels; accepted: auto, torch")
    set_by_server = {name.removeprefix("ilm_"): value for name, value in chosen.items() if value is not None}
    return {
        name: (transducer.ilm_greedy if name == GREEDY else transducer.ilm_beam)._replace(**set_by_server)
        for name in TRANSDUCER_DECODERS
    }


@dataclass(frozen=True)
class LanguageOffer:
    """The languages that a stream may choose from; none for a model without language prompts."""

    prompts: Mapping[str, int]
    """The prompt of each."""
    default: str = ""
    """Language of a stream by default; "" without a choice."""
    detected: tuple[str, ...] = ()
    """Languages of a model without a choice, as its card names them."""
    writes_tags: bool = False
    """The model names the language of what it writes."""

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
            return f"language is {shown(name)}, but the model has no language prompts: leave it out"
        others = len(self.prompts) - _NAMED_IN_ERRORS
        accepted = ", ".join(self.names[:_NAMED_IN_ERRORS]) + (f" and {others} others" if others > 0 else "")
        return f"language is {shown(name)}; accepted: {accepted}"

    def known(self, language: str | None) -> str:
        """The language of a stream with this option; "" where it is not known."""
        return language or self.default or (self.detected[0] if len(self.detected) == 1 else "")

    def figure_rules(self, numbers: Numbers, language: str | None) -> str:
        """The language whose rules write numbers as figures; "" for words, `AUTO` for that of each segment's tag.

        SettingError where the language of the stream has no rules, or is not known.
        """
        named = self.known(language)
        code = named.replace("_", "-").partition("-")[0].lower() if numbers == FIGURES else numbers
        if code in FIGURE_LANGUAGES or (code == AUTO and self.writes_tags):
            return code
        if numbers == WORDS:
            return ""
        accepted = f"{WORDS}, or a language with rules: {', '.join(FIGURE_LANGUAGES)}"
        is_named = f"is {shown(named)}" if named else "is not known"
        raise SettingError(f"numbers is {FIGURES!r}, but the language {is_named}; accepted: {accepted}")


NO_LANGUAGES = LanguageOffer({})


def offer_languages(checkpoint: "Checkpoint", decoding: DecodingConfig) -> LanguageOffer:
    """The languages of a model; SettingError for a default that is none of them, and for figures without rules."""
    prompt = checkpoint.config.prompt
    if prompt is None:
        offer = LanguageOffer({}, detected=card_languages(checkpoint.directory))
    else:
        offer = LanguageOffer(prompt.languages, prompt.default, writes_tags=bool(prompt.tags))
    if decoding.language is not None:
        if problem := offer.problem_with(decoding.language):
            raise SettingError(problem)
        offer = replace(offer, default=decoding.language)
    offer.figure_rules(decoding.numbers, None)
    return offer


def check_decoding_files(decoding: DecodingConfig, checkpoint: "Checkpoint") -> None:
    """Checks the files that the options name by their beginnings.

    LanguageModelError or GraphError for a file that is missing, of another kind, or for another model.
    """
    if decoding.lm:
        from penstock.scoring.ngram.io import check_vocabulary, read_token_names

        check_vocabulary(decoding.lm, read_token_names(checkpoint.tokenizer_path))
    if decoding.graph:
        from penstock.scoring.wfst.graph_file import check_graph_file

        check_graph_file(decoding.graph, checkpoint.config.vocabulary_size, sha256_of(checkpoint.tokenizer_path))
