"""Audio files as samples at 16 kHz; errors name the file."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock_client.audio.channels import EACH, MIX, Channel, check_channel
from penstock_client.audio.tracks import Audio, load
from penstock_client.errors import AudioError, PackageError
from penstock_client.protocol import SAMPLE_RATE_HZ


def read_audio(path: str | Path, channel: Channel = MIX) -> npt.NDArray[np.float32]:
    """Mono samples [n] in -1 .. 1 at 16 kHz: the mix of all channels, or one channel. Other rates are resampled.

    Reads what docs/transcription.md lists. Raises AudioError for a file that is missing, empty, not audio or without
    the channel, or has samples that are not finite; PackageError without the library for its format. Warns of each
    remark: where samples are missing, and where the channels cancel in the mix.
    """
    return read_mono(path, channel)[0]


def read_mono(path: str | Path, channel: Channel = MIX) -> tuple[npt.NDArray[np.float32], float]:
    """The samples of `read_audio`, and the time of the first one in the file."""
    if channel == EACH:
        raise ValueError("channel is 'each', which gives several tracks: use load_audio")
    audio = load_audio(path, channel)
    for remark in audio.remarks:
        warnings.warn(f"{path}: {remark.text}", stacklevel=3)
    return audio.tracks[0].samples, audio.start_s


def load_audio(path: str | Path, channel: Channel = MIX) -> Audio:
    """The tracks of a file at 16 kHz, where it begins, and remarks on what is missing; `-` is standard input.

    With channel "each", every channel is a track. Raises AudioError for an unusable file, PackageError without the
    library for its format, ValueError for what names no channel.
    """
    check_channel(channel)
    with naming(path):
        return load(path, SAMPLE_RATE_HZ, channel)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Turns the errors of readers into those of this package, which name the file."""
    try:
        yield
    except ImportError as error:
        raise PackageError(str(error)) from error
    except ValueError as error:
        raise AudioError(path, str(error)) from error
