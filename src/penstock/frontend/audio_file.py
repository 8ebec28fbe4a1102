"""Audio files as samples; errors name the file."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from penstock.errors import AudioError, PackageError
from penstock_client.audio import sound_file
from penstock_client.audio.channels import EACH, MIX, Channel
from penstock_client.audio.sound_file import Audio


def read_audio(path: str | Path, sample_rate_hz: int, channel: Channel = MIX) -> np.ndarray:
    """Mono samples [n] float32 in -1 .. 1 at `sample_rate_hz`: the mix of all channels, or one channel.

    Reads wav, flac, ogg, mp3 and every other format of libsndfile. Raises AudioError with the name of an unusable or
    truncated file, PackageError without libsndfile. Warns where the channels cancel in the mix.
    """
    if channel == EACH:
        raise ValueError("channel is 'each', which gives several tracks: use load_audio")
    audio = load_audio(path, sample_rate_hz, channel)
    if audio.problem:
        raise AudioError(audio.problem)
    if audio.warning:
        warnings.warn(audio.warning, stacklevel=2)
    return audio.tracks[0].samples


def load_audio(path: str | Path, sample_rate_hz: int, channel: Channel = MIX) -> Audio:
    """The tracks of a file at `sample_rate_hz`, also of a truncated one; `-` is standard input.

    Its problem and warning start with the file's name. Raises AudioError with the name of an unusable file,
    PackageError without libsndfile.
    """
    with named(path):
        audio = sound_file.load(path, sample_rate_hz, channel)
    return Audio(
        audio.tracks, audio.problem and f"{path}: {audio.problem}", audio.warning and f"{path}: {audio.warning}"
    )


def audio_seconds(path: str | Path) -> float:
    """Duration of a file, from its header if that has it. Raises AudioError if it is missing, not audio or empty."""
    with named(path):
        return sound_file.seconds(path)


@contextmanager
def named(path: str | Path) -> Iterator[None]:
    """Turns ValueError and ImportError of `sound_file` into errors with a code and the file's name."""
    try:
        yield
    except ImportError as error:
        raise PackageError(str(error)) from error
    except ValueError as error:
        raise AudioError(f"{path}: {error}") from error
