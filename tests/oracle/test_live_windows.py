"""Live windows against NeMo's script for buffered inference, with its audio buffer and its search's state."""

import pytest

pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")

import numpy as np
import torch
from nemo.collections.asr.parts.utils.streaming_utils import ContextSize, StreamingBatchedAudioBuffer

from benchmarks.nemo_models import decode
from penstock import OfflineRecognizer, StreamingRecognizer
from penstock.encoder.window.attention import Chunks
from penstock.encoder.window.encoder import WindowEncoder
from tests.helpers.oracle.models import OracleModel, long_speech, speech
from tests.helpers.oracle.offline_models import EVERYTHING, TRANSDUCERS, UNIFIED, offline_model

pytestmark = pytest.mark.oracle
TOLERANCE = 1e-4
MENU = [(14, 1, 0), (14, 2, 1), (14, 5, 4), (14, 5, 0)]
"""Windows of the unified model, in encoder frames. Without right context the script's buffer is a chunk late."""


@torch.no_grad()
def nemo_script(one: OracleModel, samples: np.ndarray, window: tuple[int, int, int]) -> tuple[list[int], int]:
    """Labels of all windows but the last, and the frame that the last one's begin with."""
    frame = one.checkpoint.config.encoder_frame_samples
    sizes = ContextSize(*(frame * size for size in window))
    buffer = StreamingBatchedAudioBuffer(1, sizes, torch.float32, "cpu")
    context = list(window) if one.name == UNIFIED else EVERYTHING
    computer, audio = one.model.decoding.decoding.decoding_computer, torch.from_numpy(samples)[None]
    labels: list[int] = []
    frames, state, begin, end = 0, None, 0, min(sizes.chunk + sizes.right, len(samples))
    while end < len(samples):
        added, is_last = audio[:, begin:end], torch.tensor([False])
        buffer.add_audio_batch_(added, torch.tensor([end - begin]), is_last_chunk=False, is_last_chunk_batch=is_last)
        encoded = one.encode_mel(one.mel(buffer.samples[0].numpy()), context)
        chunk = encoded[buffer.context_size.left // frame :]
        found, state = computer(x=chunk[None], out_len=torch.tensor([window[1]]), prev_batched_state=state)
        labels += found.transcript[0, : int(found.current_lengths[0])].tolist()
        frames += window[1]
        begin, end = end, min(end + sizes.chunk, len(samples))
    return labels, frames


def assert_as_the_script(one: OracleModel, samples: np.ndarray, window: tuple[int, int, int]) -> int:
    config = one.checkpoint.config
    seconds = ",".join(f"{size * config.encoder_frame_ms / 1000:g}" for size in window)
    stream = StreamingRecognizer(one.checkpoint.directory).open_stream(options={"window": seconds})
    for begin in range(0, len(samples), 20_000):
        stream.push(samples[begin : begin + 20_000])
    stream.finish()
    expected, frames = nemo_script(one, samples, window)
    assert [token.id for token in stream.tokens if token.timestamp < frames] == expected
    return len(expected)


@pytest.mark.parametrize("name", TRANSDUCERS)
def test_labels_are_those_of_nemos_script(name):
    one = offline_model(name)
    signals = [long_speech(30.0), *speech()[:4]]
    for window in ((50, 10, 10), (20, 5, 1), (12, 25, 6)):
        assert sum(assert_as_the_script(one, samples, window) for samples in signals) > 20


@pytest.mark.parametrize("window", MENU, ids=str)
def test_a_unified_model_is_nemos(window):
    """Frames of windows of any length, labels of the script."""
    one = offline_model(UNIFIED)
    encoder, mels = WindowEncoder(one.checkpoint), [one.mel(samples) for samples in (*speech(), long_speech(30.0))]
    for mel, found in zip(mels, encoder.encode(mels, [Chunks(*window)] * len(mels)), strict=True):
        torch.testing.assert_close(found, one.encode_mel(mel, list(window)), rtol=0, atol=TOLERANCE)
    if window[2]:
        assert assert_as_the_script(one, long_speech(20.0), window) > 10


def test_a_unified_model_attends_to_all_of_a_file():
    one = offline_model(UNIFIED)
    signals = [*one.signals, *speech(), long_speech(30.0)]
    for samples, result in zip(signals, OfflineRecognizer(one.checkpoint.directory).transcribe(signals), strict=True):
        expected = decode(one.model, one.encode_mel(one.mel(samples), [-1, -1, -1]))
        assert [token.id for token in result.tokens] == expected.tokens
        assert [token.timestamp for token in result.tokens] == expected.timestamps
