"""Context of every protocol: the configuration, the streams and the access checks."""

import logging
from dataclasses import dataclass, field
from functools import cached_property

from penstock_common.log_lines import RateLimit
from penstock_gateway import limits
from penstock_gateway.config import Config
from penstock_gateway.errors import GatewayError
from penstock_gateway.security.access import Access
from penstock_gateway.security.budget import Budget, KeyLimit
from penstock_gateway.stream.metrics import Metrics
from penstock_gateway.stream.replica_streams import ReplicaStreams
from penstock_gateway.tracing import current_request_id

log = logging.getLogger("penstock_gateway.access")


@dataclass(frozen=True)
class Gateway:
    """The parts of a gateway that the protocols share."""

    config: Config
    streams: ReplicaStreams
    access: Access
    metrics: Metrics
    messages: Budget = field(
        default_factory=lambda: Budget("memory for a message", limits.MAX_UNARY_BYTES, limits.MAX_WAIT_S)
    )
    """The memory for messages of unary gRPC calls."""
    connections: KeyLimit = field(default_factory=lambda: KeyLimit("connections", lambda streams: 4 * streams + 8))
    """Calls, requests and WebSockets."""
    beginning: KeyLimit = field(default_factory=lambda: KeyLimit("calls without a message", lambda streams: streams))
    """Streams of Riva before their first message."""
    uploads: KeyLimit = field(default_factory=lambda: KeyLimit("uploads", lambda streams: 2 * streams))
    """From the first byte of a body to the end of its reply."""
    _rejections: RateLimit = field(default_factory=lambda: RateLimit(limits.REJECTIONS_PER_S))

    @cached_property
    def recordings(self) -> Budget:
        """The room for uploads and for compressed audio of gRPC streams, in bytes on the disk or in memory."""
        two = 2 * (self.config.max_upload_bytes + limits.MAX_FIELDS_BYTES)
        return Budget("room for a recording", max(limits.MAX_RECORDINGS_BYTES, two), limits.MAX_WAIT_S)

    def note_rejection(self, protocol: str, error: GatewayError) -> None:
        """Counts and logs an error that a client gets. Call it where the protocol renders the error."""
        self.metrics.rejected.labels(protocol, error.code.name).inc()
        if not self._rejections.passes():
            return
        fields = {
            "request": current_request_id(),
            "protocol": protocol,
            "code": error.code.name,
            "reason": error.message,
            "not_logged": self._rejections.take_left_out() or None,
        }
        log.info("rejected", extra={"fields": fields})
