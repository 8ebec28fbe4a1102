"""Options declared as fields of a model: flags over variables over defaults, and errors that name what is accepted."""

from argparse import ArgumentParser
from typing import Annotated, Literal

import numpy as np
import pytest
from pydantic import Field

from penstock_common.declaration import About, Off, Options, unknown_variables


class Sample(Options):
    prefix = "SAMPLE_"

    size: Annotated[int, Field(ge=1, le=8), About("N")] = Field(4, description="how many")
    weight: Annotated[float, Field(ge=0, le=1), About("W")] = Field(0.5, description="how much")
    mode: Annotated[Literal["a", "b"] | None, About("NAME", unset="the best")] = Field(None, description="which")
    strict: bool = Field(False, description="whether")
    pause: Annotated[Off | Annotated[int, Field(ge=2, le=5)], About("S")] = Field(0, description="how long")


def read(arguments=(), **environment):
    parser = ArgumentParser()
    for option in Sample.options():
        option.add_flag(parser)
    return Sample.read(environment, parser.parse_args(arguments))


def test_flags_come_before_variables_and_variables_before_defaults():
    assert read() == Sample()
    assert read(SAMPLE_SIZE="2", SAMPLE_MODE="").size == 2
    assert read(["--size", "3", "--no-strict"], SAMPLE_SIZE="2", SAMPLE_STRICT="1") == Sample(size=3)
    assert read(SAMPLE_STRICT="true", SAMPLE_MODE="b") == Sample(strict=True, mode="b")


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--size", "9"], {}, "--size is '9'; accepted: integers from 1 to 8"),
        ([], {"SAMPLE_SIZE": "x"}, "SAMPLE_SIZE is 'x'; accepted: integers from 1 to 8"),
        ([], {"SAMPLE_WEIGHT": "nan"}, "SAMPLE_WEIGHT is 'nan'; accepted: numbers from 0 to 1"),
        ([], {"SAMPLE_MODE": "c"}, "SAMPLE_MODE is 'c'; accepted: a, b"),
        ([], {"SAMPLE_STRICT": "yes"}, "SAMPLE_STRICT is 'yes'; accepted: 1, true, 0, false"),
        (["--pause", "1"], {}, "--pause is '1'; accepted: 0 (off) or integers from 2 to 5"),
    ],
)
def test_a_wrong_text_is_named_with_what_is_accepted(arguments, environment, message):
    with pytest.raises(ValueError, match="accepted") as raised:
        read(arguments, **environment)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": True}, "size is True; accepted: integers from 1 to 8"),
        ({"weight": float("nan")}, "weight is nan; accepted: numbers from 0 to 1"),
        ({"strict": 1}, "strict is 1; accepted: True, False"),
        ({"sizes": 1}, "'sizes' is not known; accepted: size, weight, mode, strict, pause"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_accepted(values, message):
    with pytest.raises(ValueError, match="accepted") as raised:
        Sample(**values)
    assert str(raised.value) == message


def test_numbers_of_numpy_are_python_numbers():
    sample = Sample(size=np.int64(3), weight=np.float32(0.25))
    assert (type(sample.size), type(sample.weight)) == (int, float)


def test_a_copy_with_changes_is_checked():
    sample = Sample(size=3, mode="a")
    assert sample.given() == {"size": 3, "mode": "a"}
    assert sample.replace(mode=None, strict=True) == Sample(size=3, strict=True)
    with pytest.raises(ValueError, match="size is 0; accepted: integers from 1 to 8"):
        sample.replace(size=0)


def test_variables_are_read_back():
    sample = Sample(size=3, strict=True)
    variables = sample.variables()
    assert variables["SAMPLE_MODE"] == ""
    assert Sample.read(variables) == sample


def test_unknown_variables_are_named_with_the_nearest_known_one():
    environment = {"SAMPLE_SIZES": "1", "SAMPLE_XYZ": "", "SAMPLE_MODE": "a", "OTHER_SIZES": "1"}
    warnings = list(unknown_variables("SAMPLE_", Sample().variables(), environment))
    assert warnings == [
        "the environment variable SAMPLE_SIZES is not known and has no effect; is SAMPLE_SIZE meant?",
        "the environment variable SAMPLE_XYZ is not known and has no effect",
    ]
