"""Options declared as the fields of a pydantic model: flags, environment variables, checks and tables follow from them.

Server, client and gateway declare theirs with `Options`.
"""

import argparse
import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from typing_extensions import Self

from penstock_common.command_parser import Parser
from penstock_common.errors import shown as shown
from penstock_common.listening import ACCEPTED, listen_address

Off = Annotated[int, Field(ge=0, le=0)]
"""In a union with other numbers: 0, which turns the option off."""
_SWITCH = ("1", "true", "0", "false")


@dataclass(frozen=True)
class About:
    """Annotates a field with what its type, limits and description do not say."""

    metavar: str | None = None
    """Stands for the value in help texts; None for a switch."""
    unset: str = ""
    """The default in words where it is None; "": not shown."""
    page: str | None = None
    """Page of docs/ that explains the option."""
    decoders: tuple[str, ...] = ()
    """Searches that use the option; () for one that has nothing to do with the search."""
    accepted: str | None = None
    """The accepted values in words; by default they follow from the type."""


Listen = Annotated[str, AfterValidator(listen_address), About("ADDRESS", accepted=ACCEPTED)]


class Options(BaseModel):
    """Base class of declarations. The constructor raises `error`, whose text names the option and what is accepted."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
    prefix: ClassVar[str] = "PENSTOCK_"
    """The names of environment variables begin with it."""
    error: ClassVar[type[Exception]] = ValueError
    replaced: ClassVar[dict[str, str]] = {}
    """Options of earlier versions, and which stand for them now."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**{name: _plain(value) for name, value in values.items()})
        except ValidationError as error:
            raise self.problem(error) from None

    @classmethod
    def options(cls) -> "tuple[Option, ...]":
        """All options, in the order of their declaration."""
        return tuple(map(cls.option, cls.model_fields))

    @classmethod
    def add_flags(cls, parser: argparse.ArgumentParser, groups: Mapping[str, str]) -> None:
        """Adds all flags; groups: for the first option of each group its title in the help."""
        group: argparse._ActionsContainer = parser
        for option in cls.options():
            if option.name in groups:
                group = parser.add_argument_group(groups[option.name])
            option.add_flag(group)
        if isinstance(parser, Parser):
            parser.replaced = {_flag(old): _flag(new) for old, new in cls.replaced.items()}

    @classmethod
    @cache
    def option(cls, name: str) -> "Option":
        """One option."""
        return Option(name, cls.model_fields[name], cls.prefix, cls.error)

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ, args: argparse.Namespace | None = None) -> Self:
        """The values of flags, else of variables, else the defaults; `error` names a wrong one and what is accepted."""
        for old, new in cls.replaced.items():
            if environment.get(variable := cls.prefix + old.upper()):
                raise cls.error(f"{variable} is not known any more; use {cls.prefix}{new.upper()}")
        flags = {} if args is None else read_flags(cls.options(), args)
        others = [each for each in cls.options() if each.name not in flags and environment.get(each.variable)]
        return cls(**flags, **{each.name: each.read(environment) for each in others})

    def replace(self, **changes: Any) -> Self:
        """A copy with other values, which are checked."""
        return type(self)(**{**self.given(), **changes})

    def given(self) -> dict[str, Any]:
        """The values that are not the defaults, by name."""
        return {name: value for name, value in self if value != type(self).model_fields[name].default}

    def variables(self) -> dict[str, str]:
        """All values as environment variables; None is the empty text."""
        return {self.option(name).variable: "" if value is None else str(value) for name, value in self}

    @classmethod
    def problem(cls, error: ValidationError) -> Exception:
        """`error` for the first problem: "NAME is VALUE; accepted: ...", or what a validator raised."""
        first = error.errors(include_url=False)[0]
        if first["type"] == "value_error":
            raised: Exception = first["ctx"]["error"]
            return raised if isinstance(raised, cls.error) else cls.error(str(raised))
        name = str(first["loc"][0])
        if name not in cls.model_fields:
            return cls.error(f"{shown(name)} is not known; accepted: {', '.join(cls.model_fields)}")
        option = cls.option(name)
        accepted = "True, False" if option.is_switch else option.accepted
        return cls.error(f"{name} is {shown(first['input'])}; accepted: {accepted}")


class Option:
    """A field of an `Options` class as users see it."""

    def __init__(self, name: str, field: FieldInfo, prefix: str, error: type[Exception]):
        self.name, self.default, self.help = name, field.default, field.description or ""
        about = next((each for each in field.metadata if isinstance(each, About)), About())
        self.metavar, self.page, self.decoders = about.metavar, about.page, about.decoders
        self.flag, self.variable = _flag(name), prefix + name.upper()
        self.is_switch = field.annotation is bool
        self._field, self._about, self._error = field, about, error

    @cached_property
    def _type(self) -> TypeAdapter[Any]:
        return TypeAdapter(Annotated[self._field.annotation, self._field])  # type: ignore[arg-type]

    @cached_property
    def accepted(self) -> str:
        """The accepted values in words."""
        return self._about.accepted or _in_words(self._type.json_schema())

    @property
    def default_text(self) -> str:
        """The default as a user writes it, or in words."""
        if self.default in (None, ()):
            return self._about.unset
        return f"{self.default:g}" if isinstance(self.default, bool | float) else str(self.default)

    def add_flag(self, parser: argparse._ActionsContainer, *aliases: str) -> None:
        """Adds the flag; its value stays text until `read`, as that of the variable."""
        if self.is_switch:
            about = f"{self.help} ({'on' if self.default else 'off'})"
            parser.add_argument(self.flag, *aliases, action=argparse.BooleanOptionalAction, help=about)
        else:
            default = f" ({self.default_text})" if self.default_text else ""
            about = f"{self.help}; {self.accepted}{default}"
            parser.add_argument(self.flag, *aliases, metavar=self.metavar, help=about)

    def given(self, args: argparse.Namespace) -> str | None:
        """The text of the flag; None where it is not given."""
        value = getattr(args, self.name)
        return None if value is None else str(value)

    def source(self, given: str | None) -> str:
        """The name for messages: the flag if it was given, else the variable."""
        return self.variable if given is None else self.flag

    def parse(self, text: str) -> Any:
        """Text to value; ValueError names the accepted values."""
        try:
            if not self.is_switch or text.lower() in _SWITCH:
                return self._type.validate_strings(text, strict=True)
        except ValidationError:
            pass
        raise ValueError(f"accepted: {self.accepted}")

    def read(self, environment: Mapping[str, str] = os.environ, given: str | None = None) -> Any:
        """The value of the flag if `given`, else of the variable, else the default. An empty variable is not set.

        The class's `error` names the wrong flag or variable and the accepted values.
        """
        text = (environment.get(self.variable) or None) if given is None else given
        if text is None:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise self._error(f"{self.source(given)} is {text!r}; {error}") from None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _plain(value: object) -> object:
    """A number of NumPy as one of Python, which are the types of parameters; anything else as it is."""
    if not isinstance(value, Real) or type(value).__module__ == "builtins":
        return value
    try:
        return int(value) if isinstance(value, Integral) else float(value)
    except OverflowError:
        return value


def read_flags(options: Iterable[Option], args: argparse.Namespace) -> dict[str, Any]:
    """The values of the flags that are given, by the options' names. Raises as `Option.read`."""
    return {each.name: each.read({}, text) for each in options if (text := each.given(args)) is not None}


def unknown_variables(prefix: str, known: Iterable[str], environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """A warning for each variable with this prefix that has no effect, with the name that it may stand for."""
    names = {variable.removeprefix(prefix): variable for variable in known}
    for variable in sorted(environment):
        if variable.startswith(prefix) and (name := variable.removeprefix(prefix)) not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"; is {names[near[0]]} meant?" if near else ""
            yield f"the environment variable {variable} is not known and has no effect{hint}"


def _in_words(schema: dict[str, Any]) -> str:
    """The accepted values of a JSON schema."""
    if "anyOf" in schema:
        return " or ".join(_in_words(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "enum" in schema:
        return ", ".join(schema["enum"])
    kind = schema.get("type")
    if kind == "boolean":
        return ", ".join(_SWITCH)
    if kind not in ("integer", "number"):
        return "text"
    noun = "integers" if kind == "integer" else "numbers"
    above, low, high = schema.get("exclusiveMinimum"), schema.get("minimum"), schema.get("maximum")
    if low == high == 0:
        return "0 (off)"
    if above is not None:
        return f"{noun} above {above:g}" + ("" if high is None else f", up to {high:g}")
    if low is None:
        return noun
    form = "d" if kind == "integer" else "g"
    return f"{noun} from {low:{form}}" + ("" if high is None else f" to {high:{form}}")
