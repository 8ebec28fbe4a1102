"""A long recording on its way through an offline model takes no more memory than documented (docs/models.md)."""

import numpy as np

from benchmarks.random_models import EncoderSizes, RandomEncoder
from penstock.encoder.window.attention import Band
from penstock.encoder.window.run import WindowEncoder
from penstock.frontend.log_mel import LogMel
from penstock.frontend.window_mel import WindowMel
from penstock.model.mel_filterbank import hann_window, mel_filterbank
from penstock.pipeline.options.stream_options import StreamOptions
from penstock.transcription.recording import Recording
from tests.helpers.tensor_memory import TensorMemory

WIDTH, MEL_BINS, NUMBER_BYTES = 128, 80, 4
SECOND, ENCODER_FRAMES_PER_S, MEL_FRAMES_PER_S = 16000, 12.5, 100
BLOCK_S = 4


def peak_bytes(encoder: WindowEncoder, mel: WindowMel, features, seconds: int) -> int:
    """Of the log-mel of a recording that is read in blocks, and of its frames."""
    noise = np.random.default_rng(0).normal(0.0, 0.1, BLOCK_S * SECOND).astype(np.float32)
    with TensorMemory() as memory:
        recording = Recording(mel.open(), features, StreamOptions())
        for _ in range(seconds // BLOCK_S):
            recording.add(noise)
        recording.end()
        assert recording.error is None
        (frames,) = encoder.encode([recording.take()], [Band(64, 64)])
    assert len(frames) == seconds * ENCODER_FRAMES_PER_S
    assert memory.alive_bytes < 2 * frames.untyped_storage().nbytes()
    return memory.peak_bytes


def test_memory_for_each_second_is_log_mel_and_frames_or_four_times_the_frames():
    source = RandomEncoder(EncoderSizes(2, WIDTH, 4, 8), None)
    features, torch_window = source.features, hann_window(source.features.window_samples)
    mel = WindowMel(LogMel(features, torch_window, mel_filterbank(SECOND, features.fft_samples, MEL_BINS)))
    encoder = WindowEncoder(source)
    short, long = (peak_bytes(encoder, mel, features, seconds) for seconds in (600, 1200))
    log_mel = MEL_BINS * NUMBER_BYTES * MEL_FRAMES_PER_S
    frames = WIDTH * NUMBER_BYTES * ENCODER_FRAMES_PER_S
    assert 0.9 < (long - short) / 600 / max(log_mel + frames, 4 * frames) < 1.1
