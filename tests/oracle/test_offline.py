"""Offline models against NeMo: log-mel, encoder frames, and what every search finds in them."""

import random

import pytest

pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")

import numpy as np
import torch

from benchmarks.nemo_models import decode
from penstock import OfflineRecognizer
from penstock.encoder.window.attention import Band
from penstock.encoder.window.encoder import WindowEncoder
from penstock.frontend.log_mel import LogMel
from penstock.frontend.window_mel import WindowMel
from penstock.pipeline.options.decoding_config import DecodingConfig
from tests.helpers.oracle.models import OracleModel, assert_greedy, long_speech, speech
from tests.helpers.oracle.offline_models import CTC, EVERYTHING, NAMES, REAL, TRANSDUCERS, offline_model
from tests.oracle.test_ctc import nemo_tokens
from tests.oracle.test_nemo_beam import (
    _AES_FLAGS,
    ModifiedAESBatchedRNNTComputer,
    fixed,
    nemo_aes,
    nemo_alsd,
    nemo_search,
)

pytestmark = pytest.mark.oracle
MEL_TOLERANCE, TOLERANCE = 1e-5, 1e-4  # the second is derived in tests/encoder/test_encoder.py
ROWS, LONGEST_S = 24, 60.0


def recordings() -> list[np.ndarray]:
    """24 of mixed lengths: without a mel frame, with one and two, up to a minute."""
    generator, source = random.Random(0), long_speech(LONGEST_S)
    lengths = [1, 160, 320, 479, *(int(len(source) ** generator.uniform(0.5, 0.95)) for _ in range(ROWS - 5))]
    cuts = [generator.randrange(len(source) - length) for length in lengths]
    parts = [source[begin : begin + length] for begin, length in zip(cuts, lengths, strict=True)]
    return [*parts, source[: int(LONGEST_S * 16000)]]


def window_mel(one: OracleModel) -> WindowMel:
    tensors = one.checkpoint.tensors("features.")
    return WindowMel(
        LogMel(one.checkpoint.config.features, tensors["features.window"], tensors["features.mel_filterbank"])
    )


@pytest.mark.parametrize("name", NAMES)
def test_log_mel(name):
    one = offline_model(name)
    mel_of = window_mel(one)
    for samples in (*one.signals, *speech(), long_speech(LONGEST_S)):
        torch.testing.assert_close(mel_of(torch.from_numpy(samples)), one.mel(samples), rtol=0, atol=MEL_TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_every_row_of_a_batch_is_nemos_row_alone(name):
    one = offline_model(name)
    encoder, mels = WindowEncoder(one.checkpoint), [one.mel(samples) for samples in recordings()]
    for mel, found in zip(mels, encoder.encode(mels), strict=True):
        expected = (
            one.encode_mel(mel, EVERYTHING) if len(mel) else torch.zeros(0, one.checkpoint.config.encoder.d_model)
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(found, encoder.encode([mel])[0], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", TRANSDUCERS)
def test_greedy_labels_frames_and_durations(name):
    one = offline_model(name)
    signals = [*one.signals, *speech(), long_speech(LONGEST_S)]
    for samples, result in zip(signals, OfflineRecognizer(one.checkpoint.directory).transcribe(signals), strict=True):
        assert_greedy(result.tokens, decode(one.model, one.encode_mel(one.mel(samples), EVERYTHING)))


@pytest.mark.parametrize("name", [CTC, "offline_rnnt_hybrid", "offline_tdt_hybrid", "offline_layer_norm", REAL])
def test_greedy_ctc(name):
    one = offline_model(name)
    signals, compared = [*one.signals, *speech()], 0
    results = OfflineRecognizer(one.checkpoint.directory).transcribe(signals, {"decoder": "ctc"})
    for samples, result in zip(signals, results, strict=True):
        expected = nemo_tokens(one.model, one.encode_mel(one.mel(samples), EVERYTHING))
        assert expected is None or [token[:3] for token in result.tokens] == expected
        compared += expected is not None
    assert compared >= 0.6 * len(signals)


@pytest.mark.parametrize("limits", [[4, 4], [8, 3], [3, 8]], ids=str)
@pytest.mark.parametrize("name", ["offline_rnnt", "offline_tdt"])
def test_local_attention_is_nemos_masked_attention(name, limits):
    """`rel_pos` with limits. NeMo's own local attention has random biases where the model has none, and is wrong where
    right < left."""
    one = offline_model(name)
    encoder, mels = WindowEncoder(one.checkpoint), [one.mel(samples) for samples in (*speech(), long_speech(30.0))]
    for mel, found in zip(mels, encoder.encode(mels, [Band(*limits)] * len(mels)), strict=True):
        torch.testing.assert_close(found, one.encode_mel(mel, limits), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", [name for name in TRANSDUCERS if "tdt" not in name and name != REAL])
def test_best_labels_of_beams(name):
    """For RNN-T; NeMo's TDT beams have faults of their own (tests/oracle/test_nemo_beam.py)."""
    one, beam_size = offline_model(name), 4
    signals = [*one.signals, *speech(), long_speech(20.0)]
    frames = [one.encode_mel(one.mel(samples), EVERYTHING) for samples in signals]
    recognizer = OfflineRecognizer(one.checkpoint.directory, decoding=DecodingConfig(beam_size=beam_size))
    aes = nemo_aes(one, beam_size, fixed(ModifiedAESBatchedRNNTComputer, _AES_FLAGS))
    for decoder, computer in (("alsd", nemo_alsd(one, beam_size)), ("aes", aes)):
        results = recognizer.transcribe(signals, {"decoder": decoder, "beam_size": beam_size})
        for result, (labels, _) in zip(results, nemo_search(one, computer, frames), strict=True):
            assert [token.id for token in result.tokens] == labels
