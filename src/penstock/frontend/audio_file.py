"""Audio files as samples; errors name the file."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from penstock.errors import AudioError, PackageError
from penstock_client.audio.tracks import EACH, MIX, Audio, Channel, load, seconds


def read_audio(path: str | Path, sample_rate_hz: int, channel: Channel = MIX) -> np.ndarray:
    """Mono samples [n] float32 in -1 .. 1 at `sample_rate_hz`: the mix of all channels, or one channel.

    Reads what docs/transcription.md lists. Raises AudioError with the name of an unusable file, PackageError without
    the library for its format. Warns of each remark: where samples are missing, and where the channels cancel.
    """
    if channel == EACH:
        raise ValueError("channel is 'each', which gives several tracks: use load_audio")
    audio = load_audio(path, sample_rate_hz, channel)
    for remark in audio.remarks:
        warnings.warn(f"{path}: {remark.text}", stacklevel=2)
    return audio.tracks[0].samples


def load_audio(path: str | Path, sample_rate_hz: int, channel: Channel = MIX) -> Audio:
    """The tracks of a file at `sample_rate_hz`, where it begins, and remarks; `-` is standard input.

    Raises AudioError with the name of an unusable file, PackageError without the library for its format.
    """
    with named(path):
        return load(path, sample_rate_hz, channel)


def audio_seconds(path: str | Path) -> float:
    """Duration of a file, from its header if that has it. Raises AudioError if it is missing, not audio or empty."""
    with named(path):
        return seconds(path)


@contextmanager
def named(path: str | Path) -> Iterator[None]:
    """Turns ValueError and ImportError of readers into errors with a code and the file's name."""
    try:
        yield
    except ImportError as error:
        raise PackageError(str(error)) from error
    except ValueError as error:
        raise AudioError(f"{path}: {error}") from error
