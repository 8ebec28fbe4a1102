"""The options of a live stream as those of the server, checked as far as they can be without it."""

from dataclasses import dataclass
from typing import Any

from penstock_client import StreamOptions as StartOptions
from penstock_client.protocol import Parameter
from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.stream.live_stream import StreamOptions

_ENDPOINTS = ("endpoint_silence_ms", "endpoint_no_speech_ms", "endpoint_longest_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamOptions(StartOptions):
    """Options of a stream on a replica, with those that end segments: 0 is off, whatever the server's default is."""

    endpoint_silence_ms: int = 0
    endpoint_no_speech_ms: int = 0
    endpoint_longest_s: int = 0

    @property
    def has_endpoints(self) -> bool:
        """True if segments may end by themselves."""
        return any(getattr(self, name) for name in _ENDPOINTS)

    def parameters(self) -> dict[str, Parameter]:
        """The parameters of the stream's start."""
        endpoints: dict[str, Parameter] = {name: getattr(self, name) for name in _ENDPOINTS}
        return StartOptions.parameters(self) | endpoints


def upstream_options(options: StreamOptions) -> UpstreamOptions:
    """The options as the server's. GatewayError names a wrong one."""
    values: dict[str, Any] = {
        "language": options.language,
        "boosted_phrases": tuple(options.phrases),
        "endpoint_silence_ms": options.endpoint_silence_ms,
        "decoder": options.decoder,
        "n_best": options.n_best,
        **options.extra,
    }
    accepted = UpstreamOptions.__dataclass_fields__
    if unknown := values.keys() - accepted.keys():
        name = min(unknown)[:80]
        message = f"there is no option {name!r}; accepted: {', '.join(accepted)}"
        raise GatewayError(ErrorCode.FIELD_INVALID, message, name)
    try:
        return UpstreamOptions(**values)
    except ValueError as error:
        raise GatewayError(ErrorCode.FIELD_INVALID, str(error)) from error
