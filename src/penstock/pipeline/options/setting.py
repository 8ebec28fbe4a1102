"""The declaration of one option, from which its flag, environment variable, checks and documentation follow.

Does not import torch: a launcher and a health check start without it.
"""

import argparse
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import SettingError


@dataclass(frozen=True)
class Values:
    """The values that an option accepts."""

    convert: Callable[[str], Any]
    """Text to value; raises ValueError or SettingError."""
    accepts: Callable[[Any], bool]
    """Whether a value has the right type and is within the limits."""
    accepted: str
    """The accepted values in words."""


def text(accepted: str) -> Values:
    """Any text but the empty one."""
    return Values(str, lambda value: isinstance(value, str) and value != "", accepted)


def whole(low: int, high: float = math.inf) -> Values:
    """Integers from `low` to `high`, both included."""
    limits = f"from {low}" if math.isinf(high) else f"from {low} to {high}"
    # A bool is an int in Python, but not a number here.
    return Values(int, lambda value: type(value) is int and low <= value <= high, f"integers {limits}")


def real(high: float, low: float = 0) -> Values:
    """Numbers from `low` to `high`, both included; not NaN."""
    return Values(
        float, lambda value: type(value) in (int, float) and low <= value <= high, f"numbers from {low:g} to {high:g}"
    )


def off_or(values: Values) -> Values:
    """0, which turns the option off, or one of `values`."""
    return Values(
        values.convert, lambda value: values.accepts(value) or (type(value) is int and value == 0),
        f"0 (off) or {values.accepted}",
    )  # fmt: skip


def choice(*names: str) -> Values:
    """One of `names`."""
    return Values(str, lambda value: value in names, ", ".join(names))


def switch() -> Values:
    """True or False."""
    meanings = {"1": True, "true": True, "0": False, "false": False}

    def convert(given: str) -> bool:
        if given.lower() not in meanings:
            raise ValueError
        return meanings[given.lower()]

    return Values(convert, lambda value: isinstance(value, bool), ", ".join(meanings))


@dataclass(frozen=True)
class Setting:
    """One option."""

    name: str
    """The name in Python: `max_streams`."""
    values: Values
    default: Any
    """None: `unset` describes the default."""
    metavar: str | None
    """Stands for the value in help texts; None: a switch, whose flag has no value."""
    help: str
    unset: str = "none"
    """The default in words, if `default` is None."""
    page: str | None = None
    """Page of docs/ that explains the option."""
    decoders: tuple[str, ...] = ()
    """Searches that an evaluation or transcription can set the option for; () for options of a server only."""

    @property
    def variable(self) -> str:
        """Its environment variable: PENSTOCK_MAX_STREAMS."""
        return f"PENSTOCK_{self.name.upper()}"

    @property
    def flag(self) -> str:
        """Its flag: --max-streams."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def accepted(self) -> str:
        """The accepted values in words."""
        return self.values.accepted

    @property
    def default_text(self) -> str:
        """The default as a user writes it, or in words."""
        if self.default is None:
            return self.unset
        return f"{self.default:g}" if isinstance(self.default, bool | float) else str(self.default)

    def add_flag(self, parser: argparse.ArgumentParser) -> None:
        """Adds the flag; its value stays text until `read`, as that of the variable."""
        if self.metavar is None:
            about = f"{self.help} ({'on' if self.default else 'off'})"
            parser.add_argument(self.flag, action=argparse.BooleanOptionalAction, help=about)
        else:
            about = f"{self.help}; {self.accepted} ({self.default_text})"
            parser.add_argument(self.flag, metavar=self.metavar, help=about)

    def given(self, args: argparse.Namespace) -> str | None:
        """The text of the flag; None where it is not given."""
        value = getattr(args, self.name)
        return None if value is None else str(value)

    def source(self, given: str | None) -> str:
        """The name for messages: the flag if it was given, else the variable."""
        return self.variable if given is None else self.flag

    def parse(self, given: str) -> Any:
        """Text to value; ValueError names the accepted values."""
        try:
            value = self.values.convert(given)
            if self.values.accepts(value):
                return value
        except (ValueError, SettingError):
            pass
        raise ValueError(f"accepted: {self.accepted}")

    def read(self, environment: Mapping[str, str] = os.environ, given: str | None = None) -> Any:
        """The value of the flag if `given`, else of the variable, else the default. An empty variable is not set.

        SettingError names the wrong flag or variable and the accepted values.
        """
        found = (environment.get(self.variable) or None) if given is None else given
        if found is None:
            return self.default
        try:
            return self.parse(found)
        except ValueError as error:
            raise SettingError(f"{self.source(given)} is {found!r}; {error}") from None

    def check(self, value: Any) -> None:
        """SettingError if a value from Python code is not accepted."""
        is_unset = value is None and self.default is None
        if not is_unset and not self.values.accepts(value):
            accepted = self.accepted if self.metavar else "True, False"
            raise SettingError(f"{self.name} is {value!r}; accepted: {accepted}")
