"""What every protocol is given: the configuration, the streams, and who may use them."""

import logging
from dataclasses import dataclass, field

from penstock_gateway.config import Config
from penstock_gateway.errors import GatewayError
from penstock_gateway.metrics import Metrics
from penstock_gateway.security import limits
from penstock_gateway.security.access import Access
from penstock_gateway.security.message_budget import MessageBudget
from penstock_gateway.stream.live_stream import Streams

log = logging.getLogger("penstock_gateway.access")


@dataclass(frozen=True)
class Gateway:
    """The parts of a gateway that the protocols share."""

    config: Config
    streams: Streams
    access: Access
    metrics: Metrics
    messages: MessageBudget = field(
        default_factory=lambda: MessageBudget(limits.MAX_UNARY_BYTES, limits.MAX_RECOGNIZE_BYTES, limits.MAX_WAIT_S)
    )
    """The memory for messages of unary gRPC calls."""

    def note_rejection(self, protocol: str, error: GatewayError) -> None:
        """Counts and logs an error that a client gets. Call it where the protocol renders the error."""
        self.metrics.rejected.labels(protocol, error.code.name).inc()
        fields = {"protocol": protocol, "code": error.code.name, "reason": error.message}
        log.info("rejected", extra={"fields": fields})
