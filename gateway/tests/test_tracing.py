"""Each stream is one span, in the trace of the client's request."""

import asyncio
import logging
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gateway.tests.helpers.fake_streams import GROUP
from penstock_gateway import tracing
from penstock_gateway.stream.metrics import Metrics, StreamReport
from penstock_gateway.tracing import configure_tracing, end_tracing, record_spans

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def spans():
    """The spans that have ended."""
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), trace.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    record_spans(provider)
    yield exporter.get_finished_spans
    record_spans(None)


def report(end: str) -> None:
    StreamReport(Metrics(), "riva", "shop", GROUP, "host:8001", "1 of client 'a'", "call-7").ended(end)


def test_a_stream_is_a_span_of_the_clients_trace(spans):
    async def call():
        tracing._current.set(("call-7", f"00-{TRACE}-{PARENT}-01"))
        report("finished")

    asyncio.run(call())
    (span,) = spans()
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    shown = {name.removeprefix("penstock."): value for name, value in span.attributes.items()}
    assert {name: shown[name] for name in ("request", "stream", "protocol", "model", "replica", "audio_s", "end")} == {
        "request": "call-7", "stream": "1 of client 'a'", "protocol": "riva", "model": GROUP.name,
        "replica": "host:8001", "audio_s": 0.0, "end": "finished",
    }  # fmt: skip
    assert span.end_time >= span.start_time and span.status.is_ok is not False


def test_a_lost_stream_is_an_error_and_begins_its_own_trace(spans):
    report("STREAM_LOST")
    (span,) = spans()
    assert span.parent is None
    assert (span.status.status_code.name, span.status.description) == ("ERROR", "STREAM_LOST")


def test_without_the_packages_the_extra_is_named(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    configure_tracing({})
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        configure_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"})
    assert "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http" in caplog.text


@pytest.fixture
def collector(monkeypatch):
    """Answers with the first of these statuses; where there is none with 200 at the end of the test."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    statuses, is_over = [], threading.Event()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(statuses.pop(0) if statuses else 200 * is_over.wait(60))
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        configure_tracing()
        yield statuses
        is_over.set()
        tracing._exporter.processor.shutdown()  # else its thread would go on in other tests
        record_spans(None)
        server.shutdown()


@pytest.mark.parametrize("status", [302, 308, 304])
def test_a_redirect_delivers_no_traces(collector, caplog, status):
    collector += [status, 200]
    for _ in range(2):
        report("finished")
        tracing._exporter.processor.force_flush()
    assert f"traces are lost: Failed to export spans batch code: None, reason: status {status}, to " in caplog.text


def test_lost_traces_have_a_line_when_that_begins_and_ends_and_delay_no_stop(collector, caplog):
    collector += [500, 400, 200, 200]
    with caplog.at_level(logging.INFO):
        for _ in range(4):
            report("finished")
            tracing._exporter.processor.force_flush()
        report("finished")
        end_tracing(0.1)  # the collector is silent
    lost, again, lost_again = (line.getMessage() for line in caplog.records if line.name == tracing.__name__)
    assert lost.startswith("traces are lost: ") and "500" in lost
    assert again == "traces are delivered again"
    assert lost_again == "traces are lost: the collector has not accepted the last ones within 0.1 s"
