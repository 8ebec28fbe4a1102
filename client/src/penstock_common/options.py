"""The options of a stream, declared once: the flags, checks and tables of client, gateway and server follow from it.

What depends on the model and its server is checked there, with the same class.
"""

import argparse
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Real
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import Self

from penstock_common.declaration import About, Off, Option, Options
from penstock_common.errors import OptionError, shown
from penstock_common.phrases import has_words

Parameter = str | int | float | bool
"""The kinds of Triton request parameters."""

Decoder = Literal["greedy", "alsd", "aes", "ctc", "ctc_beam", "wfst"]
"""The searches; `Client.server_info` names those of a server."""
DECODERS: tuple[Decoder, ...] = get_args(Decoder)
GREEDY, ALSD, AES, CTC, CTC_BEAM, WFST = DECODERS
TRANSDUCER_BEAMS = (ALSD, AES)
BEAM_DECODERS = (*TRANSDUCER_BEAMS, CTC_BEAM)
"""Searches with a beam size per stream."""
TRANSDUCER_DECODERS = (GREEDY, *TRANSDUCER_BEAMS)
CTC_DECODERS = (CTC, CTC_BEAM, WFST)
LM_DECODERS = (GREEDY, *BEAM_DECODERS)
"""Searches that add the scores of the n-gram language model."""
N_BEST_DECODERS = (*BEAM_DECODERS, WFST)
BOOSTED_DECODERS = (*LM_DECODERS, WFST)
_DEFAULT_DECODERS = (GREEDY, CTC)

MAX_PHRASES = 2000
MAX_PHRASE_CHARACTERS = 200
MAX_BOOST = 100.0
MIN_SILENCE_MS, MAX_SILENCE_MS = 200, 10_000
"""Limits of the silence that ends a segment."""
_SHOWN_CHARACTERS = 40

BeamSize = Annotated[int, Field(ge=1, le=32)]
LmWeight = Annotated[float, Field(ge=0, le=10)]
IlmAlpha = Annotated[float, Field(ge=0, le=2)]
IlmBeta = Annotated[float, Field(ge=0, le=10)]
EndpointSilence = Off | Annotated[int, Field(ge=MIN_SILENCE_MS, le=MAX_SILENCE_MS)]
EndpointNoSpeech = Off | Annotated[int, Field(ge=200, le=60_000)]
EndpointLongest = Off | Annotated[int, Field(ge=5, le=120)]
EndpointState = Literal["reset", "carry"]
EndpointTokens = Literal["on", "off"]
LanguageTags = Literal["remove", "keep"]
UnknownPhrases = Literal["reject", "ignore"]
FigureLanguage = Literal["en", "de", "fr", "es", "pt", "nl", "da", "it"]
FIGURE_LANGUAGES: tuple[FigureLanguage, ...] = get_args(FigureLanguage)
"""Languages with rules that write spoken numbers as figures."""
Numbers = Literal["words", "figures", FigureLanguage]
WORDS, FIGURES, AUTO = "words", "figures", "auto"
"""Numbers as the model writes them; as figures by the language of the stream; the language that leaves it open."""
ACCEPTED_NUMBERS = f"words; figures, by the language of the stream; or its rules: {', '.join(FIGURE_LANGUAGES)}"
NamedWindow = Literal["file", "long", "live"]
WINDOWS: tuple[NamedWindow, ...] = get_args(NamedWindow)
"""Windows of an offline model that have names; `ServerInfo.windows` has those of a server."""
FILE, LONG, LIVE = WINDOWS
WindowSizes = Annotated[str, Field(pattern=r"^[0-9.]{1,9},[0-9.]{1,9},[0-9.]{1,9}$")]
Window = NamedWindow | WindowSizes
MAX_SPEAKERS = 8
"""Speakers that a speaker model tells apart."""
Speakers = Literal["off", "on"] | Annotated[int, Field(ge=2, le=MAX_SPEAKERS)]
ACCEPTED_SPEAKERS = f"off, on, or the most speakers: integers from 2 to {MAX_SPEAKERS}, which is the model's limit"
SpeakerMode = Literal["low_latency", "very_low_latency", "ultra_low_latency", "file"]
SPEAKER_MODES: tuple[SpeakerMode, ...] = get_args(SpeakerMode)
SPEAKER_FILE = SPEAKER_MODES[-1]
OWN_OPTIONS = ("speakers", "speaker_mode")
"""Options about speakers: of streams of `asr_batch_speakers` alone."""
ACCEPTED_WINDOWS = f"{', '.join(WINDOWS)} (10,2,2), or LEFT,CHUNK,RIGHT in seconds"
BoostedPhrase = str | tuple[str, float]
"""A phrase of one or more words, alone or with its own boost."""
LANGUAGES = "a language of the model (`penstock-client --info` names them)"
ENDPOINTS = ("endpoint_silence_ms", "endpoint_no_speech_ms", "endpoint_longest_s")
"""The options of rules that end segments, by numbers."""
PHRASE_OPTIONS = ("boosted_phrases", "boost", "unknown_phrases")
CHANGEABLE = (*PHRASE_OPTIONS, *ENDPOINTS, "endpoint_tokens", "endpoint_state", "language", "numbers")
"""Options that may change where a client ends a segment; the stream goes on."""
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.ASCII | re.IGNORECASE)
_TIME = re.compile(r"(?<![\d:])([01]?\d|2[0-4]):[0-5]\d\s*$", re.ASCII)
MAX_WRITTEN_BOOST = 10.0
"""In TEXT:BOOST, where a larger number is more likely a part of the phrase."""
_SERVERS = "the server's"


class PhraseError(ValueError):
    """A boosted phrase has a wrong text or boost, or there are too many."""

    def __init__(self, message: str):
        super().__init__(f"boosted phrases: {message}")


def _phrases(given: object) -> tuple[BoostedPhrase, ...]:
    accepted = StreamOptions.option("boosted_phrases").accepted
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError(f"boosted_phrases is {shown(given)}; accepted: {accepted}")
    if len(given) > MAX_PHRASES:
        raise PhraseError(f"more than {MAX_PHRASES} phrases; accepted: up to {MAX_PHRASES} per stream")
    for number, phrase in enumerate(given, start=1):
        if not isinstance(phrase, str) and (not isinstance(phrase, Sequence) or len(phrase) != 2):
            raise ValueError(f"boosted_phrases: entry {number} is {shown(phrase)}; accepted: {accepted}")
    return tuple(_phrase(number, phrase) for number, phrase in enumerate(given, start=1))


def _phrase(number: int, phrase: Any) -> BoostedPhrase:
    if isinstance(phrase, str):
        _check_text(number, phrase)
        return phrase
    text, boost = phrase
    name = _check_text(number, text)
    value = math.nan
    if isinstance(boost, Real) and not isinstance(boost, bool):
        with suppress(OverflowError):  # an integer too large for a float
            value = float(boost)
    if not abs(value) <= MAX_BOOST:  # rejects NaN too
        raise PhraseError(f"{name} has boost {shown(boost)}; accepted: numbers from {-MAX_BOOST:g} to {MAX_BOOST:g}")
    return text, value


def _check_text(number: int, text: object) -> str:
    """The phrase's name in errors. PhraseError for a text that is no phrase."""
    if not isinstance(text, str):
        raise PhraseError(f"phrase {number} is {type(text).__name__}; accepted: text")
    start = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
    name = f"phrase {number} ({start!r})"
    if len(text) > MAX_PHRASE_CHARACTERS:
        raise PhraseError(f"{name} has {len(text)} characters; accepted: 1 to {MAX_PHRASE_CHARACTERS}")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise PhraseError(f"{name} has an unpaired surrogate; accepted: valid Unicode text")
    if not text.strip():
        raise PhraseError(f"{name} is empty; accepted: one or more words")
    return name


class StreamOptions(Options):
    """Options of one stream; None: the server's default. ValueError names a wrong value and what is accepted."""

    decoder: Annotated[
        Decoder | None, About("NAME[:OPTION=VALUE,...]", unset="greedy; ctc without a transducer", page="decoding.md")
    ] = Field(default=None, description="search, of those that the server has")
    beam_size: Annotated[
        BeamSize | None, About("K", unset=_SERVERS, page="beam_search.md#settings", decoders=BEAM_DECODERS)
    ] = Field(default=None, description="hypotheses per stream, at most the server's beam size")
    n_best: Annotated[int, Field(ge=0, le=32), About("N", page="beam_search.md", decoders=N_BEST_DECODERS)] = Field(
        default=0, description="alternatives in a final result, at most the beam size"
    )
    lm_weight: Annotated[
        LmWeight | None, About("W", unset=_SERVERS, page="language_model.md", decoders=(*LM_DECODERS, WFST))
    ] = Field(default=None, description="weight of the language model, or of the graph (wfst); without one only 0")
    ilm_alpha: Annotated[
        IlmAlpha | None, About("W", unset=_SERVERS, page="factorized.md#options", decoders=TRANSDUCER_DECODERS)
    ] = Field(
        default=None, description="internal language model: weight in the softmax over labels; without one only 1"
    )
    ilm_beta: Annotated[
        IlmBeta | None, About("W", unset=_SERVERS, page="factorized.md#options", decoders=TRANSDUCER_DECODERS)
    ] = Field(default=None, description="internal language model: weight of its score; without one only 0")
    boosted_phrases: Annotated[
        Sequence[BoostedPhrase],
        BeforeValidator(_phrases),
        About(
            unset="none",
            page="boosting.md",
            decoders=BOOSTED_DECODERS,
            accepted=f'a list ["phrase", ["phrase", boost]] of up to {MAX_PHRASES}',
        ),
    ] = Field(default=(), description="word boosting: phrases that become more likely")
    boost: Annotated[
        float | None,
        Field(ge=-MAX_BOOST, le=MAX_BOOST),
        About("B", unset="2", page="boosting.md", decoders=BOOSTED_DECODERS),
    ] = Field(default=None, description="default boost of phrases, in nats per token; below 0 it suppresses them")
    unknown_phrases: Annotated[
        UnknownPhrases | None, About("NAME", unset="reject", page="boosting.md#tokens", decoders=BOOSTED_DECODERS)
    ] = Field(
        default=None,
        description="phrases: reject those that the model cannot write, or fit all, also in case, and else ignore",
    )
    language: Annotated[
        str | None, Field(min_length=1), About("NAME", unset=_SERVERS, page="models.md#languages", accepted=LANGUAGES)
    ] = Field(default=None, description="language of the audio, for models with language prompts")
    language_tags: Annotated[LanguageTags | None, About("NAME", unset="remove", page="models.md#languages")] = Field(
        default=None, description="the model's language tags in the text"
    )
    numbers: Annotated[
        Numbers | None, About("NAME", unset=_SERVERS, page="transcription.md#numbers", accepted=ACCEPTED_NUMBERS)
    ] = Field(default=None, description="spoken numbers in final results")
    endpoint_silence_ms: Annotated[EndpointSilence | None, About("MS", unset=_SERVERS, page="endpointing.md")] = Field(
        default=None, description="endpoint: silence after a word that ends a segment, in ms"
    )
    endpoint_no_speech_ms: Annotated[EndpointNoSpeech | None, About("MS", unset=_SERVERS, page="endpointing.md")] = (
        Field(default=None, description="endpoint: duration of a segment without words, in ms")
    )
    endpoint_longest_s: Annotated[EndpointLongest | None, About("S", unset=_SERVERS, page="endpointing.md")] = Field(
        default=None, description="endpoint: duration after which any short pause ends a segment, in s"
    )
    endpoint_state: Annotated[
        EndpointState | None, About("NAME", unset=_SERVERS, page="endpointing.md#reset-or-carry")
    ] = Field(default=None, description="the decoder at an endpoint")
    endpoint_tokens: Annotated[
        EndpointTokens | None, About("NAME", unset=_SERVERS, page="endpointing.md#end-tokens")
    ] = Field(default=None, description="endpoint: end tokens of the model, such as `<EOU>`; without any only off")
    window: Annotated[
        Window | None, About("NAME", unset="file", page="serving.md#files", accepted=ACCEPTED_WINDOWS)
    ] = Field(
        default=None,
        description="attention of an offline model: file as trained, above 10 min local; long always local; the others "
        "live, by chunks",
    )
    speakers: Annotated[
        Speakers | None, About("NAME", unset="off", page="speakers.md#in-calls", accepted=ACCEPTED_SPEAKERS)
    ] = Field(default=None, description="the speaker of each word; needs a server with a speaker model")
    speaker_mode: Annotated[
        SpeakerMode | None, About("NAME", unset="low_latency, of files file", page="speakers.md#in-calls")
    ] = Field(default=None, description="audio that a step of the speaker model waits for")

    @model_validator(mode="after")
    def _check(self) -> Self:
        """ValueError for an option that the decoder does not have, or that another one needs."""
        possible = _DEFAULT_DECODERS if self.decoder is None else (self.decoder,)
        for option in self.options():
            if getattr(self, option.name) and option.decoders and not set(possible) & set(option.decoders):
                *others, last = option.decoders
                chosen = self.decoder or "the default"
                raise ValueError(f"{option.name} needs decoder {', '.join(others)} or {last}; the stream's is {chosen}")
        if self.decoder in BEAM_DECODERS and self.beam_size is not None and self.n_best > self.beam_size:
            raise ValueError(f"n_best is {self.n_best}; accepted: integers from 0 to {self.beam_size}, the beam size")
        if self.speaker_mode is not None and self.speakers in (None, "off"):
            raise ValueError("speaker_mode is given without speakers")
        return self

    def parameters(self) -> dict[str, Parameter]:
        """The Triton parameters of the stream's first request, without defaults; phrases are JSON."""
        given = self.given()
        if given.get("speakers") == "off":
            del given["speakers"]
        if phrases := given.get("boosted_phrases"):
            given["boosted_phrases"] = json.dumps(phrases)
        return given


def parameters_of(options: StreamOptions | None) -> dict[str, Parameter]:
    """Parameters of a stream with these options. TypeError for something else."""
    if options is None:
        return {}
    if not isinstance(options, StreamOptions):
        raise TypeError(f"options is a {type(options).__name__}, expected StreamOptions")
    return options.parameters()


def changes_of(options: Mapping[str, Any] | None) -> dict[str, Parameter]:
    """The parameters with which a request that ends a segment changes these options of its stream.

    No phrases: []. ValueError names an option that cannot change, or a wrong value.
    """
    values = dict(options or {})
    if fixed := [name for name in values if name not in CHANGEABLE]:
        accepted = ", ".join(CHANGEABLE)
        raise ValueError(f"{shown(fixed[0])} cannot change in a running stream; accepted: {accepted}")
    if missing := [name for name, value in values.items() if value is None]:
        raise ValueError(f"{missing[0]} is None; accepted in a running stream: a value")
    given = StreamOptions(**values)
    changes: dict[str, Parameter] = {name: getattr(given, name) for name in values}
    if "boosted_phrases" in changes:
        changes["boosted_phrases"] = json.dumps(given.boosted_phrases)
    return changes


def is_live_window(window: object) -> bool:
    """True for a value of the option `window` with which an offline model takes live audio."""
    return window is not None and window not in (FILE, LONG)


def parse_decoder(text: str, known: Iterable[Option]) -> tuple[str, dict[str, Any]]:
    """Parses "greedy" or "name:option=value,option=value": the decoder, and values by the names of `known` options.

    Short names do as well: "beam" is `beam_size`, of wfst `wfst_beam`. ValueError names the accepted values.
    """
    name, has_options, rest = text.partition(":")
    if name not in DECODERS:
        raise ValueError(f"decoder {text!r}: {name!r} is not known; known: {', '.join(DECODERS)}")
    own = {option.name: option for option in known if name in option.decoders}
    values: dict[str, Any] = {}
    for part in rest.split(",") if has_options else ():
        given, _, value = part.partition("=")
        names = (given, f"{name}_{given}", f"{given}_size")
        option = next((own[each] for each in names if each in own), None)
        if option is None:
            raise ValueError(f"decoder {text!r}: {given!r} is not an option of {name}; options: {', '.join(own)}")
        if option.name in values:
            raise ValueError(f"decoder {text!r}: {given!r} is given twice")
        try:
            values[option.name] = option.parse(value)
        except ValueError as error:
            raise ValueError(f"decoder {text!r}: {given} is {value!r}; {error}") from None
    return name, values


def split_decoder_flag(args: argparse.Namespace, known: Iterable[Option]) -> None:
    """Gives the options in `--decoder NAME:OPTION=VALUE` to their own flags. ValueError names what is wrong."""
    if args.decoder is None or ":" not in args.decoder:
        return
    name, values = parse_decoder(args.decoder, known)
    for option, value in values.items():
        if getattr(args, option) is not None:
            raise ValueError(f"decoder {args.decoder!r}: {option!r} is also a flag; accepted: one of them")
        setattr(args, option, str(value))
    args.decoder = name


def parse_phrase(place: str, argument: str) -> BoostedPhrase:
    """TEXT or TEXT:BOOST: the last colon precedes a boost, but for a time such as 12:30 at the end of the phrase.

    ValueError names the place and a mistyped boost.
    """
    text, colon, boost = argument.rpartition(":")
    if not has_words(text if colon else boost):
        raise ValueError(f"{place}: {argument!r} has no words, expected TEXT or TEXT:BOOST")
    if not colon or _TIME.search(argument):
        return argument.strip()
    if not _NUMBER.fullmatch(boost.strip()):
        raise ValueError(f"{place}: {boost!r} in {argument!r} is not a number, expected TEXT or TEXT:BOOST")
    if abs(float(boost)) > MAX_WRITTEN_BOOST:
        raise ValueError(
            f"{place}: {boost!r} in {argument!r} is too large for a boost in nats per token; accepted in TEXT:BOOST: "
            f"{-MAX_WRITTEN_BOOST:g} to {MAX_WRITTEN_BOOST:g}, for the phrase {argument!r} {argument + ':2'!r}"
        )
    return text.strip(), float(boost)


OptionalOptions = TypeVar("OptionalOptions", StreamOptions, StreamOptions | None)


def without_speakers(parameters: "Mapping[str, Parameter]") -> dict[str, Parameter]:
    """The parameters of a stream that goes on without speakers."""
    return {name: value for name, value in parameters.items() if name not in OWN_OPTIONS}


def for_file(options: OptionalOptions) -> OptionalOptions:
    """The options of a whole file: its speakers are told apart in long steps, unless a mode is named."""
    if options is None or options.speakers in (None, "off") or options.speaker_mode is not None:
        return options
    return options.replace(speaker_mode=SPEAKER_FILE)


def check_live_options(options: StreamOptions | None) -> None:
    """Raises OptionError for an option that only suits whole files."""
    if options is not None and options.speaker_mode == SPEAKER_FILE:
        *accepted, _ = SPEAKER_MODES
        raise OptionError(f"speaker_mode is {SPEAKER_FILE!r}, of whole files; accepted live: {', '.join(accepted)}")
