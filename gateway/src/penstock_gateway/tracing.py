"""The id of a request, by which a client finds its lines in the log, and the span of a stream for OpenTelemetry.

Spans need the extra `tracing` and a collector in OTEL_EXPORTER_OTLP_ENDPOINT; without either nothing is recorded. A
span belongs to the client's trace if the request has `traceparent`.
"""

import logging
import os
import re
import secrets
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import grpc
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock_gateway.version import __version__

HEADER = "x-request-id"
_TRACE = "traceparent"
_ID = re.compile(r"[\x21-\x7e]{1,128}")
_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
"""The W3C's form: version, trace, span, flags."""
_current: ContextVar["tuple[str | None, str | None]"] = ContextVar("request", default=(None, None))
"""The id, and `traceparent`, of the request that a task serves."""
log = logging.getLogger(__name__)
PACKAGES = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_tracer: Any = None
_exporter: Any = None


def current_request_id() -> str | None:
    """The id of the request that this task serves; None outside of one."""
    return _current.get()[0]


def choose_id(request_id: str | None, trace_parent: str | None) -> str:
    """The client's id, else that of its trace, else a new one."""
    if request_id and _ID.fullmatch(request_id):
        return request_id
    trace = _TRACE_PARENT.fullmatch(trace_parent or "")
    return trace[1] if trace else secrets.token_hex(16)


class RequestIds:
    """Middleware: gives each request and WebSocket its id, and names it in the reply."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls the application within the id."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        chosen = choose_id(headers.get(HEADER), headers.get(_TRACE))
        _current.set((chosen, headers.get(_TRACE)))

        async def named(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
                message.setdefault("headers", [])
                MutableHeaders(scope=message)[HEADER] = chosen
            await send(message)

        await self._app(scope, receive, named)


class RequestIdInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Gives each gRPC call its id: a call is served in the task that looks up its method."""

    async def intercept_service(self, continuation: Callable[..., Awaitable[Any]], details: Any) -> Any:
        """Looks up the method within the id."""
        texts = {key: value for key, value in details.invocation_metadata or () if isinstance(value, str)}
        trace_parent = texts.get(_TRACE)
        _current.set((choose_id(texts.get(HEADER), trace_parent), trace_parent))
        return await continuation(details)


def configure_tracing(environment: Mapping[str, str] = os.environ) -> None:
    """Sends spans to the collector that the environment names, until `end_tracing`. Call it once per process."""
    global _exporter
    endpoint = next((name for name in _ENDPOINTS if environment.get(name)), None)
    if endpoint is None:
        return
    try:
        import requests
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
    resource = Resource.create({"service.name": name, "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    session = None
    if not any("CREDENTIAL_PROVIDER" in name for name in environment):  # it makes a session of its own
        session = requests.Session()
        session.hooks["response"].append(_check_status)
    _exporter = _Exporter(OTLPSpanExporter(session=session))
    _exporter.processor = BatchSpanProcessor(_exporter)
    provider.add_span_processor(_exporter.processor)
    record_spans(provider)


def _check_status(response: Any, *_: object, **__: object) -> None:
    """OSError for a redirect, which OpenTelemetry takes for success."""
    if 300 <= response.status_code < 400:
        raise OSError(f"status {response.status_code}, to {response.headers.get('location', 'nowhere')}")


def end_tracing(limit_s: float) -> None:
    """Sends the last spans. A collector that is down or slow delays the end of the process by at most `limit_s`."""
    if _exporter is None:
        return
    last = threading.Thread(target=_exporter.processor.shutdown, daemon=True)
    last.start()
    last.join(limit_s)
    if last.is_alive():
        _exporter.note_loss(f"the collector has not accepted the last ones within {limit_s:g} s")


class _Exporter(logging.Handler):
    """Logs one line when traces are lost and one when they are delivered again, instead of OpenTelemetry's own lines.

    OpenTelemetry logs each attempt, and reports the reason only there.
    """

    def __init__(self, exporter: Any):
        super().__init__(logging.WARNING)
        self._exporter, self.shutdown, self.processor = exporter, exporter.shutdown, None
        self._is_losing, self._lines = False, list[str]()
        for name in ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal"):
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())
        if record.name.startswith("opentelemetry.sdk"):  # its queue is full, although exports may succeed
            self.note_loss(self._lines[-1])

    def export(self, spans: Sequence[Any]) -> Any:
        self._lines.clear()
        result = self._exporter.export(spans)
        if result.name != "SUCCESS":
            self.note_loss(next(iter(self._lines), "no reason is known"))
        elif self._is_losing:
            self._is_losing = False
            log.info("traces are delivered again")
        return result

    def note_loss(self, reason: str) -> None:
        if not self._is_losing:
            self._is_losing = True
            log.warning("traces are lost: %s", reason)


def record_spans(provider: Any) -> None:
    """Streams from now on have a span of this TracerProvider; None ends it."""
    global _tracer
    _tracer = None if provider is None else provider.get_tracer("penstock_gateway", __version__)


class StreamSpan:
    """The span of one stream, from its start in the task of its request to `end`."""

    def __init__(self, attributes: Mapping[str, Any]):
        """attributes: None is left out."""
        self._span: Any = None
        if _tracer is None:
            return
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        _, trace_parent = _current.get()
        parent = TraceContextTextMapPropagator().extract({_TRACE: trace_parent} if trace_parent else {})
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
