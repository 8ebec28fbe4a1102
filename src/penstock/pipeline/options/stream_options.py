"""The options of one stream, sent with its first request: validated, with the server's defaults, phrases tokenized.

`penstock_common.options` declares them; here is what depends on the model and its server.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from penstock.endpointing.rules import CARRY, MAX_WARM_UP_CHUNKS, RESET, EndpointRules
from penstock.errors import ErrorCode, SettingError, StreamError, shown
from penstock.model.config import IlmPair
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.offers import (
    NO_END_TOKENS,
    NO_LANGUAGES,
    DecoderOffer,
    LanguageOffer,
    offer_decoders,
    offer_languages,
    without_ilm,
)
from penstock.pipeline.options.windows import live_window
from penstock.scoring.boosting.phrases import Phrase, TokenPhrases, merge_phrases, tokenize_phrases
from penstock_common.options import (
    BEAM_DECODERS,
    CHANGEABLE,
    ENDPOINTS,
    GREEDY,
    LM_DECODERS,
    PHRASE_OPTIONS,
    SPEAKER_MODES,
    WFST,
    Decoder,
    EndpointTokens,
    PhraseError,
    StreamOptions,
)

if TYPE_CHECKING:  # the command line reads the limits here without torch
    from penstock.model.bundle import Checkpoint
    from penstock.scoring.wfst.words import GraphWords
    from penstock.speakers.bundle import SpeakerConfig

MAX_REQUEST_S = 30.0
"""Audio of one request."""
DEFAULT_BOOST = 2.0
_SERVER_NAMES = DecodingConfig.model_fields.keys()
"""Options with a default of the server have the same names there."""
_ILM = ("ilm_alpha", "ilm_beta")
WARM_UP = "warm_up_chunks"
"""Parameter of a start that resumes another stream at an endpoint, not an option: see `EndpointRules`."""
FINALIZE = "finalize"
"""Parameter of any request, not an option: true if a segment ends with it."""


class ResolvedOptions(StreamOptions):
    """Options of one stream as the decoder uses them: with the server's defaults, phrases tokenized."""

    __init__ = BaseModel.__init__  # only `parse_stream_options` has wrong values to report; pydantic reads JSON with it

    decoder: Decoder = GREEDY
    beam_size: int = 1
    """K, at most the server's; 1 for searches without a beam size."""
    lm_weight: float = 0.0
    """Weight of the language model, for `wfst` of the graph."""
    figures: str = ""
    """The language whose rules write numbers as figures; "" for words, "auto" for that of each segment's tag."""
    phrases: TokenPhrases = ()
    """In place of `boosted_phrases` and `boost`, which are their defaults."""
    prompt: int = 0
    """The language's prompt; 0 for a model without prompts."""

    warm_up_chunks: int = 0
    """See `EndpointRules`."""
    keeps_phrases: bool = False
    """A change leaves the stream its phrases."""

    @property
    def ilm(self) -> IlmPair | None:
        """Weights of the internal language model; None: those of the checkpoint, if it has one."""
        return None if self.ilm_alpha is None or self.ilm_beta is None else IlmPair(self.ilm_alpha, self.ilm_beta)

    @property
    def keeps_tags(self) -> bool:
        """Language tags are in the text, too."""
        return self.language_tags == "keep"

    @property
    def endpoint(self) -> EndpointRules:
        """The rules that end segments."""
        silence_ms, no_speech_ms, longest_s = (getattr(self, name) or 0 for name in ENDPOINTS)
        return EndpointRules(silence_ms, no_speech_ms, longest_s, self.warm_up_chunks, self.ends_at_tokens)

    @property
    def ends_at_tokens(self) -> bool:
        """An end token of the model ends the segment."""
        return self.endpoint_tokens == "on"

    @property
    def carries_state(self) -> bool:
        """At an endpoint the decoder goes on with its best hypothesis; else it starts anew."""
        return self.endpoint_state == CARRY

    @property
    def has_speakers(self) -> bool:
        """The stream asks who speaks."""
        return self.speakers not in (None, "off")

    @property
    def speaker_mode_number(self) -> int:
        """Number of the speaker model's mode in `SPEAKER_MODES`, from 1; 0 without speakers."""
        return 1 + SPEAKER_MODES.index(self.speaker_mode or SPEAKER_MODES[0]) if self.has_speakers else 0


class OptionReader:
    """Holds what options are checked against: the model's decoders, languages and tokens, the graph's words, and the
    speaker model's modes.
    """

    def __init__(self, checkpoint: "Checkpoint", decoding: DecodingConfig, speakers: "SpeakerConfig | None" = None):
        """speakers: of the model that is served; None where none is."""
        self._decoding, self._offer = decoding, offer_decoders(checkpoint.config, decoding)
        self._languages = offer_languages(checkpoint, decoding)
        self._tokenizer = Tokenizer(checkpoint.tokenizer_path)
        self._config, self._speakers = checkpoint.config, speakers
        self._graph_words = None
        if decoding.graph:
            from penstock.scoring.wfst.words import read_words

            self._graph_words = read_words(decoding.graph)

    def read(self, options: Mapping[str, Any]) -> ResolvedOptions:
        """Validates options of a stream's start; StreamError as from `parse_stream_options`."""
        if options.get("window") is not None and not self._config.encoder.is_offline:
            message = f"window is {shown(options['window'])}, but the model is a streaming one: leave it out"
            raise StreamError(ErrorCode.OPTION_INVALID, message)
        read = parse_stream_options(
            options, self._decoding, self._tokenizer, self._offer, self._graph_words, self._languages
        )
        live_window(read.window, self._config)
        self._check_speakers(read)
        return read

    def _check_speakers(self, options: ResolvedOptions) -> None:
        if not options.has_speakers:
            return
        if self._speakers is None:
            raise StreamError(ErrorCode.SPEAKERS_NOT_SERVED, "this server has no speaker model; leave speakers out")
        mode, modes = options.speaker_mode or SPEAKER_MODES[0], self._speakers.steps
        if mode not in modes:
            raise _rejection(f"speaker_mode is {mode}, but the speaker model has {', '.join(modes)}")

    def read_change(self, options: Mapping[str, Any], current: ResolvedOptions) -> ResolvedOptions:
        """The options of a running stream after a change of those given; None is the default.

        StreamError as from `parse_stream_options`, and OPTION_INVALID for an option that cannot change.
        """
        if fixed := [name for name in options if name not in CHANGEABLE]:
            accepted = f"after the start, with {FINALIZE}: {', '.join(CHANGEABLE)}"
            raise _rejection(f"{shown(fixed[0])} cannot change in a running stream; accepted {accepted}")
        kept: dict[str, Any] = {"decoder": current.decoder, "language": current.language}
        if current.numbers != self._decoding.numbers:  # a default rejects no language
            kept["numbers"] = current.numbers
        read = self.read({**kept, **options})
        has_phrases = any(name in PHRASE_OPTIONS for name in options)
        named = {*options, "figures", *(("prompt",) if "language" in options else ())}.difference(PHRASE_OPTIONS)
        changed = {name: getattr(read, name) for name in named}
        return current.model_copy(update={**changed, "phrases": read.phrases, "keeps_phrases": not has_phrases})


def parse_stream_options(
    options: Mapping[str, Any],
    config: DecodingConfig,
    tokenizer: Tokenizer,
    offer: DecoderOffer,
    words: "GraphWords | None" = None,
    languages: LanguageOffer = NO_LANGUAGES,
) -> ResolvedOptions:
    """Validates the parameters of a stream's first request and tokenizes its phrases.

    StreamError OPTION_INVALID or PHRASES_INVALID names the wrong one and what is accepted.

    options: by the names of `StreamOptions`; None is the default; phrases also as JSON text.
    words: of the decoding graph, which phrases of `wfst` must consist of.
    """
    warm_up = options.get(WARM_UP, 0)
    if type(warm_up) is not int or not 0 <= warm_up <= MAX_WARM_UP_CHUNKS:
        raise _rejection(f"{WARM_UP} is {shown(warm_up)}; accepted: integers from 0 to {MAX_WARM_UP_CHUNKS}")
    options = {name: value for name, value in options.items() if name != WARM_UP}
    decoder: Any = options.get("decoder")
    decoder = offer.default if decoder is None else decoder
    if problem := offer.problem_with(decoder):
        raise _rejection(problem)
    for option in StreamOptions.options():
        if option.decoders and options.get(option.name) is not None and decoder not in option.decoders:
            accepted = offer.alternatives(option.decoders)
            raise _rejection(f"{option.name} needs decoder {accepted}; the stream's is {decoder}")
    beam_size = options.get("beam_size")
    if type(beam_size) is int and not 1 <= beam_size <= config.beam_size:
        raise _rejection(f"beam_size is {shown(beam_size)}; accepted: integers from 1 to {config.beam_size}")
    given = _declared({**options, "decoder": decoder})
    defaults = _server_defaults(decoder, config, tokenizer, offer)
    chosen = defaults | given.given()
    _check_server_limits(given, chosen["beam_size"], config)
    if decoder not in offer.ilm:
        _check_without_ilm(given)
        chosen |= dict.fromkeys(_ILM)
    phrases = _phrases(given, options.get("boosted_phrases") is not None)
    ignores_unknown = given.unknown_phrases == "ignore"
    if words is not None and decoder == WFST:
        tokens = words.tokenize(phrases, ignores_unknown)
    else:
        tokens = tokenize_phrases(phrases, tokenizer, ignores_unknown)
    chosen |= {"boosted_phrases": (), "boost": None, "unknown_phrases": None, "phrases": tokens}
    chosen |= {"prompt": _prompt(given, languages), WARM_UP: warm_up}
    chosen["figures"] = _figures(given, config, languages)
    chosen["endpoint_tokens"] = _endpoint_tokens(given, config, offer)
    return ResolvedOptions(**chosen)


def _declared(options: Mapping[str, Any]) -> StreamOptions:
    """The options, checked without the model and the server."""
    values = {str(name): value for name, value in options.items() if value is not None}
    if isinstance(phrases := values.get("boosted_phrases"), str):
        try:
            values["boosted_phrases"] = json.loads(phrases)
        except (ValueError, RecursionError) as error:
            accepted = StreamOptions.option("boosted_phrases").accepted
            raise _rejection(f"boosted_phrases is not JSON: {error}; accepted: {accepted}") from error
    try:
        return StreamOptions(**values)
    except PhraseError as error:
        raise StreamError(ErrorCode.PHRASES_INVALID, str(error)) from None
    except ValueError as error:
        raise _rejection(str(error)) from None


def _server_defaults(
    decoder: Decoder, config: DecodingConfig, tokenizer: Tokenizer, offer: DecoderOffer
) -> dict[str, Any]:
    """The values of options that a stream does not give."""
    defaults = {name: getattr(config, name) for name in StreamOptions.model_fields if name in _SERVER_NAMES}
    if decoder == WFST:
        defaults["lm_weight"] = config.wfst_lm_weight
    elif decoder not in LM_DECODERS:
        defaults["lm_weight"] = 0.0
    if decoder not in BEAM_DECODERS:
        defaults["beam_size"] = 1
    defaults |= zip(_ILM, offer.ilm.get(decoder, (None, None)), strict=True)
    defaults["endpoint_state"] = config.endpoint_state or (CARRY if tokenizer.has_punctuation_and_capitals else RESET)
    return defaults


def _check_server_limits(given: StreamOptions, beam_size: int, config: DecodingConfig) -> None:
    if given.decoder in BEAM_DECODERS and given.n_best > beam_size:
        raise _rejection(f"n_best is {given.n_best}; accepted: integers from 0 to {beam_size}")
    if given.lm_weight and not config.lm and given.decoder != WFST:
        raise _rejection(f"lm_weight is {given.lm_weight:g}, but no language model is loaded; accepted: 0")


def _check_without_ilm(given: StreamOptions) -> None:
    for name in _ILM:
        value = getattr(given, name)
        if value is not None and (problem := without_ilm(name, value)):
            raise _rejection(problem)


def _prompt(given: StreamOptions, languages: LanguageOffer) -> int:
    if given.language is not None and (problem := languages.problem_with(given.language)):
        raise _rejection(problem)
    if given.language_tags is not None and not languages.names:
        raise _rejection("language_tags is given, but the model writes no language tags: leave it out")
    return languages.prompt(given.language or languages.default)


def _figures(given: StreamOptions, config: DecodingConfig, languages: LanguageOffer) -> str:
    try:
        return languages.figure_rules(given.numbers or config.numbers, given.language)
    except SettingError as error:
        if given.numbers is not None:
            raise _rejection(error.message) from None
        return ""  # the server's default rejects no language


def _endpoint_tokens(given: StreamOptions, config: DecodingConfig, offer: DecoderOffer) -> EndpointTokens | None:
    if offer.has_end_tokens:
        return given.endpoint_tokens or config.endpoint_tokens or "on"
    if given.endpoint_tokens == "on":
        raise _rejection(NO_END_TOKENS)
    return None


def _phrases(given: StreamOptions, are_given: bool) -> tuple[Phrase, ...]:
    if given.boost is not None and not are_given:
        raise _rejection("boost is given without boosted_phrases")
    boost = DEFAULT_BOOST if given.boost is None else given.boost
    return merge_phrases((each, boost) if isinstance(each, str) else each for each in given.boosted_phrases)


def _rejection(message: str) -> StreamError:
    return StreamError(ErrorCode.OPTION_INVALID, message)
