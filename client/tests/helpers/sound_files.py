"""Recordings as the bytes of a file."""

import io

import numpy as np
import soundfile


def sound_file(samples: np.ndarray, rate_hz: int = 16_000, form: str = "WAV", subtype: str | None = None) -> bytes:
    """A file of libsndfile; samples: [n] or [n, channels]."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format=form, subtype=subtype)
    return file.getvalue()


def media_file(form: str, codec: str, samples: np.ndarray, rate_hz: int) -> bytes:
    """A file of FFmpeg's encoders; samples: [n] float32. ImportError without PyAV."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=form) as out:
        stream = out.add_stream(codec, rate=rate_hz, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
        frame.sample_rate = rate_hz
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            out.mux(packet)
    return file.getvalue()
