"""What a stream's options say of its speakers."""

from typing import NamedTuple, TypeVar

from penstock_client.options import SPEAKER_FILE, SpeakerMode, StreamOptions
from penstock_client.protocol import Parameter

OptionalOptions = TypeVar("OptionalOptions", StreamOptions, StreamOptions | None)


class SpeakerSettings(NamedTuple):
    """Of one stream."""

    most: int | None
    """Speakers; None: as many as the model tells apart."""
    mode: SpeakerMode

    def options(self) -> "dict[str, Parameter]":
        """The options of the stream."""
        return {"speakers": self.most or "on", "speaker_mode": self.mode}


def speaker_settings(options: StreamOptions | None) -> SpeakerSettings | None:
    """Those of a stream with these options; None where its speakers are not asked for."""
    if not isinstance(options, StreamOptions) or options.speakers in (None, "off"):
        return None
    most = options.speakers if isinstance(options.speakers, int) else None
    return SpeakerSettings(most, options.speaker_mode or "low_latency")


def of_file(options: OptionalOptions) -> OptionalOptions:
    """The options of a whole file: its speakers are told apart in long steps, unless a mode is named."""
    if options is None or speaker_settings(options) is None or options.speaker_mode is not None:
        return options
    return options.replace(speaker_mode=SPEAKER_FILE)
