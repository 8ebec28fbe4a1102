"""Audio files as samples at 16 kHz; errors name the file."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock_client.audio import sound_file
from penstock_client.audio.channels import EACH, MIX, Channel, check_channel
from penstock_client.audio.sound_file import Audio
from penstock_client.errors import AudioError, PackageError
from penstock_client.protocol import SAMPLE_RATE_HZ


def read_audio(path: str | Path, channel: Channel = MIX) -> npt.NDArray[np.float32]:
    """Mono samples [n] in -1 .. 1 at 16 kHz: the mix of all channels, or one channel. Other rates are resampled.

    Reads wav, flac, ogg, opus, mp3, au and the other formats of libsndfile. Raises AudioError for a file that is
    missing, empty, truncated, not audio or without the channel, or has samples that are not finite; PackageError
    without libsndfile. Warns where the channels cancel in the mix.
    """
    if channel == EACH:
        raise ValueError("channel is 'each', which gives several tracks: use load_audio")
    audio = load_audio(path, channel)
    if audio.problem:
        raise AudioError(path, audio.problem)
    if audio.warning:
        warnings.warn(f"{path}: {audio.warning}", stacklevel=2)
    return audio.tracks[0].samples


def load_audio(path: str | Path, channel: Channel = MIX) -> Audio:
    """The tracks of a file at 16 kHz, also of a truncated one, which has a `problem`; `-` is standard input.

    With channel "each", every channel is a track. Raises AudioError for an unusable file, PackageError without
    libsndfile, ValueError for what names no channel.
    """
    check_channel(channel)
    with naming(path):
        return sound_file.load(path, SAMPLE_RATE_HZ, channel)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Turns the errors of `sound_file` into those of this package, which name the file."""
    try:
        yield
    except ImportError as error:
        raise PackageError(str(error)) from error
    except ValueError as error:
        raise AudioError(path, str(error)) from error
