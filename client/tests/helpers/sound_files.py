"""Recordings as the bytes of a file."""

import io

import numpy as np
import soundfile

_FRAME_SAMPLES = 1024


def sound_file(samples: np.ndarray, rate_hz: int = 16_000, form: str = "WAV", subtype: str | None = None) -> bytes:
    """A file of libsndfile; samples: [n] or [n, channels]."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format=form, subtype=subtype)
    return file.getvalue()


def media_file(form: str, codec: str, samples: np.ndarray, rate_hz: int, start_s: float = 0.0) -> bytes:
    """A file of FFmpeg's encoders; samples: [n] float32. They begin later than the picture of a video at `start_s`.

    ImportError without PyAV.
    """
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=form) as out:
        stream = out.add_stream(codec, rate=rate_hz, layout="mono")
        video = out.add_stream("mpeg4", rate=5, width=32, height=32) if start_s else None
        pictures = [av.VideoFrame(32, 32, "yuv420p") for _ in range(round(5 * start_s))]
        for packet in [each for picture in [*pictures, None] for each in video.encode(picture)] if video else ():
            out.mux(packet)
        for start in range(0, len(samples), _FRAME_SAMPLES):
            frame = av.AudioFrame.from_ndarray(samples[None, start : start + _FRAME_SAMPLES], "fltp", "mono")
            frame.sample_rate, frame.pts = rate_hz, round(start_s * rate_hz) + start
            for packet in stream.encode(frame):
                out.mux(packet)
        for packet in stream.encode(None):
            out.mux(packet)
    return file.getvalue()
