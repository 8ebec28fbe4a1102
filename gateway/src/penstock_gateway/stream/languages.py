"""The language of a stream: what a client wrote, as the server's option."""

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.stream.live_stream import ModelGroup


def choose_language(code: str | None, group: ModelGroup, default: str, param: str) -> str | None:
    """The server's option: one of the model's languages, or None for a model without a choice.

    A code without a region stands for the first language with that code, and the other way round. `default` is the
    language of a model without a choice. GatewayError FIELD_INVALID names `param` for another language.
    """
    if not code:
        return None
    accepted = group.languages or (default,)
    asked = code.lower()
    exact = [name for name in accepted if name.lower() == asked]
    primary = asked.partition("-")[0]
    similar = [
        name for name in accepted if name.lower().partition("-")[0] == primary and ("-" not in asked or "-" not in name)
    ]
    for name in exact or similar:
        return name if group.languages else None
    raise GatewayError(ErrorCode.FIELD_INVALID, f"{param} is {code[:40]!r}; accepted: {', '.join(accepted)}", param)


def shown_language(group: ModelGroup, language: str | None, default: str) -> str:
    """The language to report for a stream: the one that was chosen, or that of the model."""
    return language or (group.languages[0] if group.languages else default)
