"""Log lines of a model: its start, rejections at a limited rate, and each stream at its end."""

import io
import json
import logging
import sys
from collections.abc import Callable

import numpy as np
import pytest

from penstock.errors import ErrorCode, StreamError
from penstock.pipeline.slots.ledger import LatencyTable
from penstock.pipeline.slots.table import Lease, StreamRecord
from penstock.serving.model_log import ModelLog, StreamLog, model_logger
from penstock_common.log_lines import Event, level_of, render
from tests.helpers.model_logging import kept_logging


@pytest.fixture
def output(monkeypatch) -> io.StringIO:
    """Standard error of the process."""
    text = io.StringIO()
    monkeypatch.setattr(sys, "stderr", text)
    return text


@pytest.fixture
def log(output, monkeypatch) -> ModelLog:
    monkeypatch.setenv("PENSTOCK_LOG_FORMAT", "json")
    monkeypatch.setenv("PENSTOCK_LOG_LEVEL", "debug")
    with kept_logging():
        yield ModelLog("features")


@pytest.fixture
def events(log, output) -> Callable[[], list[dict]]:
    """Reads what has been logged since the last call."""

    def read() -> list[dict]:
        lines = output.getvalue().splitlines()
        output.seek(0)
        output.truncate()
        return [json.loads(line) for line in lines]

    (start,) = read()
    assert (start["message"], start["source"]) == ("libraries loaded", "features")
    assert start["elapsed_s"] > 0
    return read


def test_a_rejection_has_the_code_and_the_clients_request_id(log, events):
    log.rejection(StreamError(ErrorCode.STREAM_NOT_OPEN, "stream 's' is not open"), "s", "request-1")
    log.rejection(StreamError(ErrorCode.STREAM_LOST, "lost"), 7, "")
    first, second = events()
    assert (first["level"], first["code"], first["stream"], first["request"]) == (
        "warning", "STREAM_NOT_OPEN", "s", "request-1",
    )  # fmt: skip
    assert first["message"] == "request rejected: stream 's' is not open"
    assert (second["level"], second["stream"], "request" in second) == ("error", 7, False)
    log.rejection(StreamError(ErrorCode.STREAM_NOT_OPEN, "on its way"), 7, "")
    assert [event["level"] for event in events()] == ["debug"]


def test_a_flood_of_rejections_is_counted(log, events, monkeypatch):
    monkeypatch.setattr(log._limit, "_now_s", lambda: 5.0)
    for _ in range(100):
        log.rejection(StreamError(ErrorCode.STREAM_LIMIT, "full"), "s", "")
    assert len(events()) == 20
    monkeypatch.setattr(log._limit, "_now_s", lambda: 6.0)
    log.rejection(StreamError(ErrorCode.STREAM_LIMIT, "full"), "s", "")
    assert events()[0]["not_logged"] == 80


@pytest.mark.parametrize(
    ("ended_by", "samples", "level"),
    [
        ("end", 16000, "info"),
        ("idle", 16000, "info"),
        ("SERVER_DRAINING", 16000, "info"),
        ("STREAM_LOST", 16000, "warning"),
        ("end", 0, "debug"),
    ],
)
def test_a_stream_is_logged_at_its_end(log, events, ended_by, samples, level):
    latency = LatencyTable(3)
    if samples:
        latency.add(np.array([1]), 20_000_000)
    record = StreamRecord("s", Lease(1, 1), "alsd", samples, 2, ended_by)
    StreamLog(log, latency, 16000).ended(record)
    (event,) = events()
    expected = {"level": level, "stream": "s", "ended_by": ended_by, "audio_s": samples / 16000, "segments": 2}
    assert event.items() >= (expected | {"message": "stream ended", "decoder": "alsd"}).items()
    assert event.get("latency_max_ms") == (20.0 if samples else None)
    assert ("latency_p50_ms" in event) == (samples > 0)


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
