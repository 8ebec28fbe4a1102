"""Recordings in each format that the gateway decodes, and what is left of them after an accident."""

import functools
import io
import os
import random

import numpy as np
import soundfile

from gateway.tests.helpers.fake_streams import speech

_SOUND_FILES = (
    ("WAV", "PCM_16"), ("WAV", "FLOAT"), ("WAV", "ULAW"), ("FLAC", None), ("OGG", "VORBIS"), ("OGG", "OPUS"),
    ("MP3", None), ("AIFF", None), ("AU", None), ("CAF", None),
)  # fmt: skip
_MEDIA = (("webm", "libopus"), ("mp4", "aac"))
_RATE_HZ = 16_000
NIGHTLY_MESSAGES = int(os.environ.get("PENSTOCK_RANDOM_MESSAGES", "10000"))
"""Of the long random tests of a protocol; 100,000 take up to 25 minutes (CONTRIBUTING.md)."""


@functools.cache
def recordings() -> tuple[bytes, ...]:
    """0.3 s of speech in each format; those of FFmpeg where it is installed."""
    samples = speech(0.3)
    found = []
    for form, subtype in _SOUND_FILES:
        file = io.BytesIO()
        soundfile.write(file, np.stack([samples, samples], axis=1), _RATE_HZ, format=form, subtype=subtype)
        found.append(file.getvalue())
    try:
        import av
    except ImportError:
        return tuple(found)
    for form, codec in _MEDIA:
        file = io.BytesIO()
        with av.open(file, "w", format=form) as out:
            stream = out.add_stream(codec, rate=_RATE_HZ, layout="mono")
            frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
            frame.sample_rate = _RATE_HZ
            for packet in [*stream.encode(frame), *stream.encode(None)]:
                out.mux(packet)
        found.append(file.getvalue())
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
