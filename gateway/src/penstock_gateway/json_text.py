"""JSON that clients send: an object that can be shown and logged again, whatever it contains."""

import json
from collections.abc import Iterable
from typing import Any, NoReturn

_MAX_DEPTH = 32


def parse_object(data: str | bytes) -> dict[str, Any] | None:
    """The object of a JSON text in UTF-8; None for anything else.

    Python's parser accepts more than JSON and Unicode do: NaN and lone surrogates, which cannot be written again, and
    nesting close to its own limit. They are None, too, as is nesting of more than 32 levels.
    """
    try:
        text = data if isinstance(data, str) else data.decode()
        value = _decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # UnicodeEncodeError, a ValueError, for a lone surrogate
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or (text.count("{") + text.count("[") > _MAX_DEPTH and _is_deep(value)):
        return None
    return value


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decode = json.JSONDecoder(parse_constant=_reject_constant).decode


def _is_deep(value: object) -> bool:
    """True for nesting of more than `_MAX_DEPTH` levels."""
    level = [value]  # values inside one more object or array each time
    for _ in range(_MAX_DEPTH):
        level = [child for parent in level for child in _children(parent)]
    return any(isinstance(child, dict | list) for child in level)


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
