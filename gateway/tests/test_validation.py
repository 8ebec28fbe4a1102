import json
import tracemalloc

import pytest

from penstock_gateway.errors import GatewayError
from penstock_gateway.realtime.openai_session import SessionFields, SessionTranscription
from penstock_gateway.validation import parse_object, read_fields


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


@pytest.mark.parametrize(
    ("kind", "name"),
    [(SessionTranscription, "keywords"), (SessionTranscription, "languages"), (SessionFields, "include")],
)
def test_an_array_of_wrong_values_is_one_error(kind, name):
    given = {name: [1] * 20_000}
    tracemalloc.start()
    try:
        with pytest.raises(GatewayError, match=rf"^FIELD_INVALID: {name}\[0\] is 1; "):
            read_fields(kind, given, "")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
