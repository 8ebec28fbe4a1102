"""JSON of clients, parsed and validated by pydantic. Its errors become errors of the gateway."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError, from_json

from penstock_common.errors import shown
from penstock_common.options import ACCEPTED_SPEAKERS, MAX_SPEAKERS
from penstock_gateway.errors import GatewayCode, GatewayError

_T = TypeVar("_T")
_F = TypeVar("_F", bound=BaseModel)
NO_EFFECT = "has no effect, and this gateway is strict; accepted: unset"
_MAX_WRONG = 32
_SPEAKERS: tuple[str | int, ...] = ("off", "on", *range(2, MAX_SPEAKERS + 1))
_TYPES = {
    "string_type": "a string", "int_type": "an integer", "bool_type": "true or false", "list_type": "an array",
    "dict_type": "an object", "model_type": "an object", "model_attributes_type": "an object",
}  # fmt: skip
"""Accepted values, by pydantic's type of an error."""


class Fields(BaseModel):
    """The fields of an object that count. Types are not converted; other fields have no effect."""

    model_config = ConfigDict(strict=True, frozen=True)


class ClosedFields(Fields):
    """All fields of an object that may have an effect; others are errors."""

    without_effect: ClassVar[frozenset[str]] = frozenset()
    """Known fields that are errors unless they are empty."""

    @model_validator(mode="before")
    @classmethod
    def _reject_unknown(cls, given: Any) -> Any:
        for name, value in given.items() if isinstance(given, Mapping) else ():
            if name not in cls.model_fields and (value or name not in cls.without_effect):
                unknown = f"is unknown; accepted: {', '.join(cls.model_fields)}"
                problem = NO_EFFECT if name in cls.without_effect else unknown
                raise PydanticCustomError("unknown_field", "{problem}", {"problem": problem, "name": name})
        return given


def accepted(text: str) -> PydanticCustomError:
    """Error of a validator; `text` names the accepted values."""
    return PydanticCustomError("not_accepted", "{text}", {"text": text})


def read_speakers(given: Any) -> str | int:
    """A validator of the option `speakers`."""
    if isinstance(given, bool) or given not in _SPEAKERS:
        raise accepted(ACCEPTED_SPEAKERS)
    return _SPEAKERS[_SPEAKERS.index(given)]


def between(low: float, high: float) -> AfterValidator:
    """A validator of numbers."""

    def check(value: float) -> float:
        if not low <= value <= high:
            raise accepted(f"{low:,} to {high:,}")
        return value

    return AfterValidator(check)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise accepted("a string that is not blank")
    return text


Array = Annotated[list[_T], Field(fail_fast=True)]
"""An array, up to its first wrong value: pydantic would make an error of a kilobyte for each."""
Text = Annotated[str, AfterValidator(_not_blank)]
"""A string that is not blank."""


def parse_object(data: str | bytes) -> dict[str, Any] | None:
    """The object of a JSON text in UTF-8; None for anything else, also for nesting of more than 200 levels."""
    try:
        value = from_json(data, allow_inf_nan=False)
    except (ValueError, TypeError):  # TypeError: a string with a lone surrogate
        return None
    return value if isinstance(value, dict) else None


def read_known(
    kind: type[_F], given: Any, path: str, counts: Callable[[Sequence[int | str]], bool], is_strict: bool = False
) -> tuple[_F, list[str]]:
    """The fields of the object at `path` that are right, and the names of those without an effect.

    A wrong or unknown field has none. GatewayError for one whose path `counts`, for more than 32, and for any in a
    strict gateway.
    """
    kept = deepcopy(given)
    wrong: list[str] = []
    while True:
        try:
            return kind.model_validate(kept), wrong
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = [*first["loc"], *([first["ctx"]["name"]] if first["type"] == "unknown_field" else [])]
            if is_strict or not place or counts(place) or len(wrong) == _MAX_WRONG:
                raise field_error([first], path) from None
            holder = kept
            for part in place[:-1]:
                holder = holder[part]
            del holder[place[-1]]
            wrong.append(shown(".".join(map(str, place)))[1:-1])


def read_fields(kind: type[_F], given: Any, path: str) -> _F:
    """The fields of the object at `path`. GatewayError names the first wrong one and what is accepted."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise field_error(error.errors(include_url=False), path) from None


def field_error(errors: Sequence[ErrorDetails], path: str) -> GatewayError:
    """The gateway's error for pydantic's; `path`: of the object, "" for the body of a request."""
    first = errors[0]
    name = path + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    if first["type"] == "unknown_field":
        name = f"{name or 'body'}.{first['ctx']['name']}"[:200]
    return invalid(name.removeprefix(".") or "body", problem(first))


def problem(error: ErrorDetails) -> str:
    """The fault of a field, after its name."""
    kind = error["type"]
    if kind == "unknown_field":
        return error["msg"]
    if kind == "value_error":
        return f"is {shown(error['input'])}: {error['ctx']['error']}"
    accepts = error["ctx"]["expected"] if kind == "literal_error" else _TYPES.get(kind, error["msg"])
    return f"is {shown(error['input'])}; accepted: {accepts}"


def invalid(path: str, problem: str) -> GatewayError:
    """The error for a wrong field."""
    return GatewayError(GatewayCode.FIELD_INVALID, f"{path} {problem}", path)
