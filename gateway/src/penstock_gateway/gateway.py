"""What every protocol is given: the configuration, the streams, and who may use them."""

from dataclasses import dataclass

from penstock_gateway.config import Config
from penstock_gateway.metrics import Metrics
from penstock_gateway.security.access import Access
from penstock_gateway.stream.live_stream import Streams


@dataclass(frozen=True)
class Gateway:
    """The parts of a gateway that the protocols share."""

    config: Config
    streams: Streams
    access: Access
    metrics: Metrics
