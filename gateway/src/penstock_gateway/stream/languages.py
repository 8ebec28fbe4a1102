"""The language of a stream: what a client wrote, as the server's option."""

from collections.abc import Sequence

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.stream.live_stream import ModelGroup


def choose_language(code: str | None, group: ModelGroup, default: str, param: str) -> str | None:
    """The server's option: one of the model's languages, or None for a model without a choice.

    A code without a region stands for the first language with that code, and the other way round. `default` is the
    language of a model without a choice whose server names none. GatewayError FIELD_INVALID names `param` for another
    language, and those that are accepted.
    """
    if not code:
        return None
    accepted = group.languages or group.detected_languages or (default,)
    if (name := _find(code, accepted)) is not None:
        return name if group.languages else None
    raise GatewayError(ErrorCode.FIELD_INVALID, f"{param} is {code[:40]!r}; accepted: {', '.join(accepted)}", param)


def shown_language(group: ModelGroup, code: str | None, default: str) -> str:
    """The language to report for a stream whose client wrote `code`, which was accepted; "" where it is not known."""
    if group.languages:
        return (_find(code, group.languages) if code else None) or group.languages[0]
    if len(group.detected_languages) > 1:
        return code or ""
    only = next(iter(group.detected_languages), default)
    return default if _find(default, (only,)) else only


def _find(code: str, names: Sequence[str]) -> str | None:
    """The name that a code stands for."""
    asked = code.lower()
    exact = [name for name in names if name.lower() == asked]
    primary = asked.partition("-")[0]
    similar = [
        name for name in names if name.lower().partition("-")[0] == primary and ("-" not in asked or "-" not in name)
    ]
    return next(iter(exact or similar), None)
