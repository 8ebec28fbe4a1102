"""The options of one stream, sent with its first request: names, defaults, limits and validation."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.decoding.beam.sizes import MAX_BEAM_SIZE
from penstock.endpointing.rules import CARRY, MAX_WARM_UP_CHUNKS, NO_ENDPOINTS, RESET, EndpointRules
from penstock.errors import ErrorCode, StreamError, shown
from penstock.model.config import MAX_ILM_ALPHA, MAX_ILM_BETA, IlmPair
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.options.decoder_offer import DecoderOffer, without_ilm
from penstock.pipeline.options.decoding_config import (
    BEAM_DECODERS,
    BOOSTED_DECODERS,
    ENDPOINT_RULES,
    ENDPOINT_SETTINGS,
    GREEDY,
    LM_DECODERS,
    MAX_LM_WEIGHT,
    N_BEST_DECODERS,
    TRANSDUCER_DECODERS,
    WFST,
    DecodingConfig,
)
from penstock.pipeline.options.language_offer import KEEP, LANGUAGE_TAGS, NO_LANGUAGES, LanguageOffer
from penstock.scoring.boosting.phrases import MAX_BOOST, Phrase, check_phrases
from penstock.scoring.boosting.tokenization import TokenPhrases, tokenize_phrases

if TYPE_CHECKING:  # the command line reads the limits here without importing torch
    from penstock.scoring.wfst.words import GraphWords

MAX_REQUEST_S = 30.0
"""Audio of one request."""
DEFAULT_BOOST = 2.0
WARM_UP = "warm_up_chunks"
"""Option of a stream that resumes another one at an endpoint: see `EndpointRules`."""
REJECT, IGNORE = "reject", "ignore"
UNKNOWN_PHRASES = (REJECT, IGNORE)
"""Values of the option `unknown_phrases`; the first is the default."""
FINALIZE = "finalize"
"""Parameter of any request, not an option: true if a segment ends with it."""
_DECODERS_WITH = {
    "beam_size": BEAM_DECODERS,
    "n_best": N_BEST_DECODERS,
    "lm_weight": (*LM_DECODERS, WFST),
    "ilm_alpha": TRANSDUCER_DECODERS,
    "ilm_beta": TRANSDUCER_DECODERS,
    "boosted_phrases": BOOSTED_DECODERS,
    "unknown_phrases": BOOSTED_DECODERS,
    "boost": BOOSTED_DECODERS,
}
_ENDPOINT_NAMES = tuple(setting.name for setting in ENDPOINT_SETTINGS)
_NAMES = ("decoder", *_DECODERS_WITH, "language", "language_tags", *_ENDPOINT_NAMES, WARM_UP)


@dataclass(frozen=True)
class StreamOptions:
    """Validated options of one stream, phrases tokenized."""

    decoder: str = GREEDY
    beam_size: int = 1
    """K, at most the server's; 1 for searches without a beam size."""
    n_best: int = 0
    """Alternatives in the final result."""
    lm_weight: float = 0.0
    """Weight of the language model, for `wfst` of the graph."""
    phrases: TokenPhrases = ()
    ilm: IlmPair | None = None
    """Weights of the internal language model; None: those of the checkpoint, if it has one."""
    prompt: int = 0
    """The language's prompt; 0 for a model without prompts."""
    keeps_tags: bool = False
    """Language tags are in the text, too."""
    endpoint: EndpointRules = NO_ENDPOINTS
    """Where segments end by themselves."""
    carries_state: bool = False
    """At an endpoint the decoder goes on with its best hypothesis; else it starts anew."""


def parse_stream_options(
    options: Mapping[str, Any],
    config: DecodingConfig,
    tokenizer: Tokenizer,
    offer: DecoderOffer,
    words: "GraphWords | None" = None,
    languages: LanguageOffer = NO_LANGUAGES,
) -> StreamOptions:
    """Validates the parameters of a stream's first request and tokenizes its phrases.

    StreamError OPTION_INVALID or PHRASES_INVALID names the wrong one and what is accepted.

    decoder: one of the offered ones; beam_size, n_best: integers, with a beam; lm_weight: 0 .. 10; ilm_alpha: 0 .. 2;
    ilm_beta: 0 .. 10; boosted_phrases: a JSON list of phrases or of [phrase, boost] pairs, as text or already read;
    boost: of phrases that name none; unknown_phrases: "reject", or "ignore" to fit phrases to the model's alphabet;
    language: one of the offered ones; language_tags: "remove" or "keep";
    endpoint_...: as those of `DecodingConfig`; endpoint_state by default as the tokenizer's vocabulary suggests.
    words: of the decoding graph, which phrases of `wfst` must consist of.
    """
    unknown = sorted(map(shown, set(options) - set(_NAMES)))
    if unknown:
        names = ", ".join(unknown[:5]) + (" and others" if len(unknown) > 5 else "")
        raise _rejection(f"{names} is not an option of the stream start; known: {', '.join(_NAMES)}")
    decoder = options.get("decoder", offer.default)
    if problem := offer.problem_with(decoder):
        raise _rejection(problem)
    for name, decoders in _DECODERS_WITH.items():
        if name in options and decoder not in decoders:
            raise _rejection(f"{name} needs decoder {offer.alternatives(decoders)}; the stream's is {decoder}")
    beam_size, n_best = _beam(options, decoder, config)
    write = partial(tokenize_phrases, tokenizer=tokenizer) if words is None or decoder != WFST else words.tokenize
    tokens = write(_phrases(options), ignores_unknown=_ignores_unknown(options))
    lm_weight, ilm = _lm_weight(options, decoder, config), _ilm(options, offer.ilm.get(decoder))
    language, endpoint = _language(options, languages), _endpoint(options, config, tokenizer)
    return StreamOptions(decoder, beam_size, n_best, lm_weight, tokens, ilm, *language, *endpoint)


def _beam(options: Mapping[str, Any], decoder: str, config: DecodingConfig) -> tuple[int, int]:
    beam_size = 1
    if decoder in BEAM_DECODERS:
        beam_size = _whole(options, "beam_size", config.beam_size, 1, config.beam_size)
    return beam_size, _whole(options, "n_best", 0, 0, beam_size if decoder in BEAM_DECODERS else MAX_BEAM_SIZE)


def _lm_weight(options: Mapping[str, Any], decoder: str, config: DecodingConfig) -> float:
    if decoder == WFST:
        return _real(options, "lm_weight", config.wfst_lm_weight, 0.0, MAX_LM_WEIGHT)
    if decoder not in LM_DECODERS:
        return 0.0
    weight = _real(options, "lm_weight", config.lm_weight, 0.0, MAX_LM_WEIGHT)
    if weight and not config.lm:
        raise _rejection(f"lm_weight is {weight:g}, but no language model is loaded; accepted: 0")
    return weight


def _ilm(options: Mapping[str, Any], default: IlmPair | None) -> IlmPair | None:
    alpha, beta = default or IlmPair()
    pair = IlmPair(
        _real(options, "ilm_alpha", alpha, 0.0, MAX_ILM_ALPHA), _real(options, "ilm_beta", beta, 0.0, MAX_ILM_BETA)
    )
    if default is not None:
        return pair
    for name, value in zip(("ilm_alpha", "ilm_beta"), pair, strict=True):
        if problem := without_ilm(name, value):
            raise _rejection(problem)
    return None


def _language(options: Mapping[str, Any], languages: LanguageOffer) -> tuple[int, bool]:
    """The prompt, and whether tags are kept."""
    name, tags = options.get("language", languages.default), options.get("language_tags", LANGUAGE_TAGS[0])
    if "language" in options and (problem := languages.problem_with(name)):
        raise _rejection(problem)
    if tags not in LANGUAGE_TAGS:
        raise _rejection(f"language_tags is {shown(tags)}; accepted: {', '.join(LANGUAGE_TAGS)}")
    if "language_tags" in options and not languages.names:
        raise _rejection("language_tags is given, but the model writes no language tags; accepted: nothing")
    return languages.prompt(name), tags == KEEP


def _endpoint(options: Mapping[str, Any], config: DecodingConfig, tokenizer: Tokenizer) -> tuple[EndpointRules, bool]:
    """The rules, and whether endpoints carry the decoder's state."""
    for setting in ENDPOINT_SETTINGS:
        if setting.name in options and not setting.values.accepts(value := options[setting.name]):
            raise _rejection(f"{setting.name} is {shown(value)}; accepted: {setting.accepted}")
    times = [options.get(rule.name, getattr(config, rule.name)) for rule in ENDPOINT_RULES]
    rules = replace(EndpointRules(*times), warm_up_chunks=_whole(options, WARM_UP, 0, 0, MAX_WARM_UP_CHUNKS))
    default = config.endpoint_state or (CARRY if tokenizer.has_punctuation_and_capitals else RESET)
    return rules, options.get("endpoint_state", default) == CARRY


def _phrases(options: Mapping[str, Any]) -> tuple[Phrase, ...]:
    boost = _real(options, "boost", DEFAULT_BOOST, -MAX_BOOST, MAX_BOOST)
    if "boosted_phrases" not in options:
        if "boost" in options:
            raise _rejection("boost is given without boosted_phrases")
        return ()
    given = options["boosted_phrases"]
    accepted = 'accepted: a JSON list as ["phrase", ["phrase", boost]]'
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise _rejection(f"boosted_phrases is not JSON: {error}; {accepted}") from error
    if not isinstance(given, list | tuple):
        raise _rejection(f"boosted_phrases is {type(given).__name__}; {accepted}")
    pairs = [(entry, boost) if isinstance(entry, str) else entry for entry in given]
    for number, pair in enumerate(pairs, start=1):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise _rejection(f"boosted_phrases: entry {number} is {shown(pair)}; {accepted}")
    return check_phrases((pair[0], pair[1]) for pair in pairs)


def _ignores_unknown(options: Mapping[str, Any]) -> bool:
    choice = options.get("unknown_phrases", REJECT)
    if choice not in UNKNOWN_PHRASES:
        raise _rejection(f"unknown_phrases is {shown(choice)}; accepted: {', '.join(UNKNOWN_PHRASES)}")
    return bool(choice == IGNORE)


def _whole(options: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _rejection(f"{name} is {shown(value)}; accepted: integers from {low} to {high}")
    return value


def _real(options: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _rejection(f"{name} is {shown(value)}; accepted: numbers from {low:g} to {high:g}")
    return float(value)


def _rejection(message: str) -> StreamError:
    return StreamError(ErrorCode.OPTION_INVALID, message)
