import json
import logging

import pytest

from penstock.serving.model_log import model_logger
from penstock_client.log_lines import Event, level_of, render
from tests.helpers.model_logging import kept_logging

EVENT = Event("warning", "features", "stream\nended", {"stream": "a b=1", "audio_s": 1.23456, "none": None}, 1.5)


def test_text_is_one_line_with_plain_or_quoted_fields():
    assert render(EVENT, "text") == (
        '1970-01-01 00:00:01.500 warning features: stream ended stream="a b=1" audio_s=1.235'
    )
    assert render(EVENT._replace(fields={"stream": "line\nbreak"}), "text").count("\n") == 0
    assert render(EVENT._replace(fields={"n": 7, "code": "STREAM_LOST"}), "text").endswith(" n=7 code=STREAM_LOST")


def test_json_has_the_same_as_an_object():
    line = render(EVENT, "json")
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:01.500Z", "level": "warning", "source": "features", "message": "stream\nended",
        "stream": "a b=1", "audio_s": 1.235,
    }  # fmt: skip


@pytest.mark.parametrize("value", ["Zürich", "\ud800", "\x00\u2028", float("nan"), float("-inf")])
def test_json_is_valid_in_ascii_whatever_a_field_has(value):
    def reject(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    line = render(EVENT._replace(message=str(value), fields={"stream": value}), "json")
    assert line.isascii()
    assert json.loads(line, parse_constant=reject)["stream"] == (str(value) if isinstance(value, float) else value)


def test_a_long_text_of_a_client_is_cut():
    assert len(render(EVENT._replace(fields={"stream": "x" * 10_000}), "json")) < 500


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_own_lines_are_recognized_by_their_level(log_format):
    assert level_of(render(EVENT, log_format)) == "warning"


@pytest.mark.parametrize(
    "line", ["", "I1121 02:24:03.384666 21781 server.cc:604] nothing", '{"a": 1}', "2026-11-22 10:00:00.000 x: y"]
)
def test_other_lines_have_no_level(line):
    assert level_of(line) is None


def test_a_model_logs_in_the_servers_format(capsys):
    with kept_logging():
        log = model_logger("encoder", "json", "warning")
        log.info("not shown")
        log.warning("%s", "shown", extra={"fields": {"stream": "s"}})
        logging.getLogger("penstock.pipeline.stream_decoders.base").warning("of another module")
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [event["message"] for event in events] == ["shown", "of another module"]
    assert (events[0]["source"], events[0]["level"], events[0]["stream"]) == ("encoder", "warning", "s")
