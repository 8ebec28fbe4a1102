"""The language of a stream: what a client wrote, as the server's option."""

from collections.abc import Sequence

from penstock_gateway.errors import ErrorCode, GatewayError, shown
from penstock_gateway.stream.live_stream import ModelGroup

_NO_CHOICE = frozenset(("", "auto", "detect", "multi", "none", "null", "unknown", "und"))
"""What clients write to leave the language to the model."""
_NAMES = {
    "arabic": "ar", "bulgarian": "bg", "chinese": "zh", "croatian": "hr", "czech": "cs", "danish": "da", "dutch": "nl",
    "english": "en", "estonian": "et", "finnish": "fi", "french": "fr", "german": "de", "greek": "el", "hebrew": "he",
    "hindi": "hi", "hungarian": "hu", "italian": "it", "japanese": "ja", "korean": "ko", "latvian": "lv",
    "lithuanian": "lt", "maltese": "mt", "mandarin": "zh", "norwegian": "no", "polish": "pl", "portuguese": "pt",
    "romanian": "ro", "russian": "ru", "slovak": "sk", "slovenian": "sl", "spanish": "es", "swedish": "sv",
    "thai": "th", "turkish": "tr", "ukrainian": "uk", "vietnamese": "vi",
}  # fmt: skip


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
    raise GatewayError(ErrorCode.FIELD_INVALID, f"{param} is {shown(code)}; accepted: {', '.join(accepted)}", param)


def shown_language(group: ModelGroup, code: str | None, default: str) -> str:
    """The language to report for a stream whose client wrote `code`, which was accepted; "" where it is not known."""
    if group.languages:
        return (_find(code, group.languages) if code else None) or group.languages[0]
    if len(group.detected_languages) > 1:
        return code if code and _find(code, group.detected_languages) else ""
    only = next(iter(group.detected_languages), default)
    return default if _find(default, (only,)) else only


def _find(code: str, names: Sequence[str]) -> str | None:
    """The name that a code stands for."""
    asked = _key(code)
    exact = [name for name in names if _key(name) == asked]
    similar = [name for name in names if _key(name).partition("-")[0] == asked.partition("-")[0]]
    return next(iter(exact or similar), None)


def _key(code: str) -> str:
    """One spelling of a code or an English name."""
    spelled = code.strip().lower().replace("_", "-")
    return _NAMES.get(spelled, spelled)
