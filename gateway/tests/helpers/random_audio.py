"""Recordings in each format that the gateway decodes, and what is left of them after an accident."""

import functools
import random

import numpy as np

from client.tests.helpers.sound_files import media_file, sound_file
from gateway.tests.helpers.fake_streams import speech

_SOUND_FILES = (
    ("WAV", "PCM_16"), ("WAV", "FLOAT"), ("WAV", "ULAW"), ("FLAC", None), ("OGG", "VORBIS"), ("OGG", "OPUS"),
    ("MP3", None), ("AIFF", None), ("AU", None), ("CAF", None),
)  # fmt: skip
_MEDIA = (("webm", "libopus"), ("mp4", "aac"))
_RATE_HZ = 16_000


@functools.cache
def recordings() -> tuple[bytes, ...]:
    """0.3 s of speech in each format."""
    samples = speech(0.3)
    stereo = np.stack([samples, samples], axis=1)
    found = [sound_file(stereo, _RATE_HZ, form, subtype) for form, subtype in _SOUND_FILES]
    found += [media_file(form, codec, samples, _RATE_HZ) for form, codec in _MEDIA]
    return tuple(found)


def spoiled(data: bytes, rng: random.Random) -> bytes:
    """The recording, cut, with other bytes, with a part missing or twice, or as it is."""
    changed = bytearray(data)
    kind = rng.randrange(6)
    start, end = sorted((rng.randrange(len(data)), rng.randrange(len(data))))
    if kind == 0:
        del changed[rng.randrange(len(data)) :]
    elif kind == 1:
        for _ in range(rng.choice((1, 3, 30, 300))):
            changed[rng.randrange(len(data))] = rng.randrange(256)
    elif kind == 2:
        for _ in range(rng.choice((1, 4))):  # headers have the numbers
            changed[rng.randrange(min(64, len(data)))] = rng.choice((0, 1, 127, 255))
    elif kind == 3:
        del changed[start:end]
    elif kind == 4:
        changed[start:start] = changed[start:end]
    return bytes(changed)
