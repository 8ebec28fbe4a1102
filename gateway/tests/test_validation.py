import json

import pytest

from penstock_gateway.validation import parse_object


def nested(levels):
    return '{"a": ' + "[" * levels + "]" * levels + "}"


@pytest.mark.parametrize(
    "data",
    [
        "", "x", "[]", "1", "null", '"a"', "{", '{"a": NaN}', '{"a": -Infinity}', "\ufeff{}", b"\xff{}",
        '{"a": "\\ud800"}', '{"\\udc00": 1}', b'{"a": "\xed\xa0\x80"}', '{"a": 1' + "0" * 5000 + "}", nested(201),
        nested(900), nested(100_000),
    ],
)  # fmt: skip
def test_what_is_no_object(data):
    assert parse_object(data) is None


def test_objects():
    wide = {"list": [[] for _ in range(100)], "pair": "\U0001f600"}
    for value in ({}, wide, {"a": {"b": [1, 2.5, None, True]}}):
        assert parse_object(json.dumps(value)) == parse_object(json.dumps(value).encode()) == value
    assert parse_object(nested(199)) is not None
