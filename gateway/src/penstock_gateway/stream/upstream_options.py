"""The options of a live stream as those of the server, checked as far as they can be without it."""

from typing import Any

from penstock_client import StreamOptions
from penstock_client.options import ENDPOINTS, EndpointState, for_file, is_live_window
from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.stream.live_stream import LiveStreamOptions
from penstock_gateway.stream.segments import Segments

_NO_SPEECH_MS = 10_000
_LIVE_S = 14.0
"""`window=live`: 10,2,2 for most models."""


def segments_of(options: LiveStreamOptions) -> Segments:
    """The segments of a stream as its client has ordered them, without borders of `longest_segment_s`."""
    if options.is_as_direct:
        return Segments()
    named = [name for name in ENDPOINTS if options.extra.get(name)]
    joins = not named and not options.endpoint_silence_ms and options.extra.get("endpoint_tokens") != "on"
    return Segments(joins, hides_silence="endpoint_no_speech_ms" not in named)


def upstream_options(
    options: LiveStreamOptions,
    endpoint_state: EndpointState | None,
    ignores_unknown: bool = False,
    longest_segment_s: int = 0,
) -> StreamOptions:
    """The options as the server's; rules that end segments are off unless named, whatever the server's default is.

    With `longest_segment_s` there are borders also in silence and in speech without pauses, from which a move can
    repeat the audio. Those of a stream that is as a direct one are its `extra` alone. endpoint_state: of another stream
    that names none. GatewayError names a wrong option.
    """
    defaults: dict[str, Any] = {
        **dict.fromkeys(ENDPOINTS, 0),
        "endpoint_no_speech_ms": _NO_SPEECH_MS if longest_segment_s else 0,
        "endpoint_longest_s": longest_segment_s,
        "language": options.language,
        "boosted_phrases": tuple(options.phrases),
        "unknown_phrases": "ignore" if options.phrases and ignores_unknown else None,
        "endpoint_silence_ms": options.endpoint_silence_ms,
        "endpoint_state": endpoint_state,
        "decoder": options.decoder,
        "n_best": options.n_best,
        "speakers": options.speakers,
    }
    values = {**({} if options.is_as_direct else defaults), **options.extra}
    try:
        start = StreamOptions(**values)
        return for_file(start) if options.is_file else start
    except ValueError as error:
        raise GatewayError(ErrorCode.FIELD_INVALID, str(error)) from error


def window_s(window: str | None) -> float:
    """Audio that a live stream of an offline model holds: its window; 0 for a file."""
    if window is None or not is_live_window(window):
        return 0.0
    try:
        return sum(map(float, window.split(",")))
    except ValueError:  # its name
        return _LIVE_S
