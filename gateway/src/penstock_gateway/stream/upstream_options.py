"""The options of a live stream as those of the server, checked as far as they can be without it."""

from typing import Any

from penstock_client import StreamOptions as StartOptions
from penstock_client.options import ENDPOINTS, EndpointState
from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.stream.live_stream import StreamOptions


def upstream_options(
    options: StreamOptions, endpoint_state: EndpointState | None, ignores_unknown: bool = False
) -> StartOptions:
    """The options as the server's; rules that end segments are off unless named, whatever the server's default is.

    Those of a stream that is as a direct one are its `extra` alone. endpoint_state: of another stream that names none.
    GatewayError names a wrong option.
    """
    defaults: dict[str, Any] = {
        **dict.fromkeys(ENDPOINTS, 0),
        "language": options.language,
        "boosted_phrases": tuple(options.phrases),
        "unknown_phrases": "ignore" if options.phrases and ignores_unknown else None,
        "endpoint_silence_ms": options.endpoint_silence_ms,
        "endpoint_state": endpoint_state,
        "decoder": options.decoder,
        "n_best": options.n_best,
    }
    values = {**({} if options.is_as_direct else defaults), **options.extra}
    try:
        return StartOptions(**values)
    except ValueError as error:
        raise GatewayError(ErrorCode.FIELD_INVALID, str(error)) from error
