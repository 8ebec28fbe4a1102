"""A stream's model, language and options, as those of the server, checked as far as they can be without it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock_common.errors import OptionError, shown
from penstock_common.options import (
    AUTO,
    ENDPOINTS,
    FIGURE_LANGUAGES,
    FIGURES,
    MAX_SILENCE_MS,
    MIN_SILENCE_MS,
    WORDS,
    EndpointState,
    StreamOptions,
    check_live_options,
    for_file,
    is_live_window,
)
from penstock_common.phrases import fit_phrase, has_words
from penstock_common.server_info import ServerInfo
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.stream.events import Segments

_NO_CHOICE = frozenset(("", "auto", "detect", "multi", "none", "null", "unknown", "und"))
"""Values with which clients leave the language to the model."""
_NAMES = {
    "arabic": "ar", "bulgarian": "bg", "chinese": "zh", "croatian": "hr", "czech": "cs", "danish": "da", "dutch": "nl",
    "english": "en", "estonian": "et", "finnish": "fi", "french": "fr", "german": "de", "greek": "el", "hebrew": "he",
    "hindi": "hi", "hungarian": "hu", "italian": "it", "japanese": "ja", "korean": "ko", "latvian": "lv",
    "lithuanian": "lt", "maltese": "mt", "mandarin": "zh", "norwegian": "no", "polish": "pl", "portuguese": "pt",
    "romanian": "ro", "russian": "ru", "slovak": "sk", "slovenian": "sl", "spanish": "es", "swedish": "sv",
    "thai": "th", "turkish": "tr", "ukrainian": "uk", "vietnamese": "vi",
}  # fmt: skip
_OPENAI = re.compile(
    r"(whisper-1|gpt-(live-|4o-|4o-mini-)?transcribe|gpt-realtime(-\d(\.\d)?)?(-mini|-whisper)?"
    r"|gpt-4o-(mini-)?realtime-preview)(-\d{4}-\d{2}-\d{2}|-diarize|-latest)*"
)
"""Names of OpenAI's models that mean the first group, so that a client changes only its address. Those of conversations
stand in the address of Realtime connections that transcribe, too."""
_NO_SPEECH_MS = 10_000
_LIVE_S = 14.0
"""`window=live`: 10,2,2 for most models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStreamOptions:
    """Options of one stream, in the server's terms; a protocol maps its fields to them."""

    model: str = ""
    """Name of a replica group; "" is the first group."""
    language: str | None = None
    """One of the group's languages; None where the model has no choice or the server's default applies."""
    phrases: Sequence[tuple[str, float]] = ()
    """Boosted phrases: text, and the boost per token in nats."""
    endpoint_silence_ms: int = 800
    """Silence that ends a segment; 0: segments end by `end_segment` only."""
    decoder: str | None = None
    """The server's default where it is None."""
    n_best: int = 0
    """Alternatives of a final; needs a beam search."""
    speakers: int | str | None = None
    """See the option of the server: "on", or the most speakers."""
    numbers: str | None = None
    """See `choose_numbers`."""
    masks: str | None = None
    """The language whose words are masked, "" where it is not known; None for none."""
    channel: int = 0
    """The channel, from 1, of a call in which each is a stream; 0 for a mix."""
    extra: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Other start options of the server by name, such as `lm_weight`. The server checks them."""
    is_file: bool = False
    """True for a whole file, whose results may all come after its end."""
    in_session: bool = False
    """True for a session that is open: its stream starts also while the gateway stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGroup(ServerInfo):
    """The replicas that serve one model with one context: what the first of them says of itself."""

    name: str
    """Model name that clients use."""
    live_window: str | None = None
    """The window of live streams of an offline model, if it has any."""

    @property
    def takes_live(self) -> bool:
        """False for an offline model without live streams."""
        return not self.windows or self.live_window is not None

    def check_live(self) -> None:
        """GatewayError FILES_ONLY for an offline model without live streams."""
        if not self.takes_live:
            message = (
                f"live audio is not accepted by model {self.name!r}; accepted: files, or a gateway with --live-window"
            )
            raise GatewayError(GatewayCode.FILES_ONLY, message, "model")

    def unwritable(self, phrases: Iterable[str]) -> list[str]:
        """Phrases that a stream leaves out, because the model cannot write them."""
        alphabet = self.alphabet
        if alphabet is None:
            return []
        return [text for text in phrases if not has_words(text) or (alphabet and fit_phrase(text, alphabet) is None)]


def is_of_openai(name: str) -> bool:
    """True for a name of OpenAI's, which is known everywhere."""
    return _OPENAI.fullmatch(name) is not None


def limited_silence_ms(silence_ms: int) -> int:
    """The nearest silence that a stream's option takes."""
    return min(max(silence_ms, MIN_SILENCE_MS), MAX_SILENCE_MS)


def unused_model(name: str, group: ModelGroup) -> list[str]:
    """The name as a field without an effect, where a client has written another one than that of `group`."""
    return [] if not name or name == group.name or is_of_openai(name) else [f"model {name!r}"]


def unused_language(code: str | None, group: ModelGroup, default: str) -> list[str]:
    """The language as a field without an effect: `group` names none, and `default`, the gateway's, is another."""
    is_named = group.languages or group.detected_languages or _find(code or "", (default,))
    return [] if is_named or _key(code or "") in _NO_CHOICE else [f"language {code!r}"]


def choose_language(code: str | None, group: ModelGroup, param: str) -> str | None:
    """The server's option: one of the model's languages, or None for a model without a choice.

    English names count, `auto` and the like leave the choice to the model. A region that no language of the model has
    stands for the first language with that code. A model whose server names no language takes any. GatewayError
    FIELD_INVALID names `param` for another language, and those that are accepted.
    """
    accepted = group.languages or group.detected_languages
    if (name := _find(code or "", accepted)) is not None:
        return name if group.languages else None
    if not accepted or _key(code or "") in _NO_CHOICE:
        return None
    raise GatewayError(GatewayCode.FIELD_INVALID, f"{param} is {shown(code)}; accepted: {', '.join(accepted)}", param)


def shown_language(group: ModelGroup, code: str | None, default: str) -> str:
    """The language to report for a stream whose client wrote `code`, which was accepted; "" where it is not known."""
    if group.languages:
        return (_find(code, group.languages) if code else None) or group.languages[0]
    if len(group.detected_languages) > 1:
        return code if code and _find(code, group.detected_languages) else ""
    only = next(iter(group.detected_languages), default)
    return default if _find(default, (only,)) else only


def choose_numbers(
    asked: str | None, group: ModelGroup, language: str | None, shown_as: str, param: str | None = None
) -> str | None:
    """The server's option where a client asks for numbers as words, as figures or by the rules of a language.

    language, shown_as: results of `choose_language` and `shown_language`. GatewayError FIELD_INVALID names `param`
    where a language has no rules; without a `param` numbers then stay words.
    """
    known = group.figure_languages
    if asked is None or (asked == WORDS and not known):  # a server of an earlier version has no such option
        return None
    if asked != FIGURES and known:
        return asked
    is_open = group.languages and not language  # the server chooses the language
    names = [shown_as] if not is_open else [AUTO] if AUTO in known else group.languages
    if all(_base(name) in known for name in names):
        return FIGURES if group.languages else _base(shown_as)
    if param is None:
        return WORDS if known else None
    accepted = ", ".join((WORDS, *(FIGURE_LANGUAGES if known else ())))
    message = f"{param} is {shown(asked)}, but language {shown(shown_as)} has no rules; accepted: {accepted}"
    raise GatewayError(GatewayCode.FIELD_INVALID, message, param)


def _base(code: str) -> str:
    """The code of a language without its region."""
    return _key(code).partition("-")[0]


def _find(code: str, names: Sequence[str]) -> str | None:
    """The name that a code stands for."""
    asked = _key(code)
    exact = [name for name in names if _key(name) == asked]
    similar = [name for name in names if _base(name) == _base(code)]
    return next(iter(exact or similar), None)


def _key(code: str) -> str:
    """One spelling of a code or an English name."""
    spelled = code.strip().lower().replace("_", "-")
    return _NAMES.get(spelled, spelled)


def segments_of(options: LiveStreamOptions) -> Segments:
    """The segments of a stream as its client has ordered them, without borders of `longest_segment_s`."""
    named = [name for name in ENDPOINTS if options.extra.get(name)]
    joins = not named and not options.endpoint_silence_ms and options.extra.get("endpoint_tokens") != "on"
    return Segments(joins, hides_silence="endpoint_no_speech_ms" not in named)


def upstream_options(
    options: LiveStreamOptions,
    endpoint_state: EndpointState | None,
    ignores_unknown: bool = False,
    longest_segment_s: int = 0,
) -> StreamOptions:
    """The options as the server's; rules that end segments are off unless named, whatever the server's default is.

    With `longest_segment_s` there are borders also in silence and in speech without pauses, from which a move can
    repeat the audio. endpoint_state: where the stream names none.
    GatewayError names a wrong option.
    """
    defaults: dict[str, Any] = {
        **dict.fromkeys(ENDPOINTS, 0),
        "endpoint_no_speech_ms": _NO_SPEECH_MS if longest_segment_s else 0,
        "endpoint_longest_s": longest_segment_s,
        "language": options.language,
        "boosted_phrases": tuple(options.phrases),
        "unknown_phrases": "ignore" if options.phrases and ignores_unknown else None,
        "endpoint_silence_ms": options.endpoint_silence_ms,
        "endpoint_state": endpoint_state,
        "decoder": options.decoder,
        "n_best": options.n_best,
        "speakers": options.speakers,
        "numbers": options.numbers,
    }
    values = {**defaults, **options.extra}
    try:
        start = StreamOptions(**values)
        if options.is_file:
            return for_file(start)
        check_live_options(start)
        return start
    except (ValueError, OptionError) as error:
        message = error.text if isinstance(error, OptionError) else str(error)
        raise GatewayError(GatewayCode.FIELD_INVALID, message) from error


def window_s(window: str | None) -> float:
    """Audio that a live stream of an offline model holds: its window; 0 for a file."""
    if window is None or not is_live_window(window):
        return 0.0
    try:
        return sum(map(float, window.split(",")))
    except ValueError:  # its name
        return _LIVE_S
