"""One span per stream for OpenTelemetry, with the extra `tracing` and a collector in OTEL_EXPORTER_OTLP_ENDPOINT.

Without either nothing is recorded. A span belongs to the client's trace if the request has `traceparent`.
"""

import logging
import os
from collections.abc import Mapping
from typing import Any

from penstock_gateway.version import __version__

log = logging.getLogger(__name__)
PACKAGES = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_tracer: Any = None


def configure_tracing(environment: Mapping[str, str] = os.environ) -> None:
    """Sends spans to the collector that the environment names. Call it once per process."""
    endpoint = next((name for name in _ENDPOINTS if environment.get(name)), None)
    if endpoint is None:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning(
            "%s is set, but there are no traces without the extra `tracing`: pip install %s", endpoint, PACKAGES
        )
        return
    name = environment.get("OTEL_SERVICE_NAME", "penstock-gateway")
    provider = TracerProvider(resource=Resource.create({"service.name": name, "service.version": __version__}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    record_spans(provider)


def record_spans(provider: Any) -> None:
    """Streams from now on have a span of this TracerProvider; None ends it."""
    global _tracer
    _tracer = None if provider is None else provider.get_tracer("penstock_gateway", __version__)


class StreamSpan:
    """The span of one stream, from its start to `end`."""

    def __init__(self, trace_parent: str | None, attributes: Mapping[str, Any]):
        """trace_parent: the client's header; attributes: None is left out."""
        self._span: Any = None
        if _tracer is None:
            return
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract({"traceparent": trace_parent} if trace_parent else {})
        self._span = _tracer.start_span("stream", context=parent, kind=SpanKind.SERVER, attributes=_named(attributes))

    def end(self, attributes: Mapping[str, Any], failure: str | None) -> None:
        """The stream is over; failure: the code of the error that ended it."""
        if self._span is None:
            return
        from opentelemetry.trace import StatusCode

        self._span.set_attributes(_named(attributes))
        if failure is not None:
            self._span.set_status(StatusCode.ERROR, failure)
        self._span.end()


def _named(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {f"penstock.{name}": value for name, value in attributes.items() if value is not None}
