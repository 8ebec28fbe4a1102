"""Configuration values: derived sizes, and rejections with key, value and what is supported."""

import dataclasses

import pytest

from penstock.errors import CheckpointError, SettingError
from penstock.model.config import (
    FACTORIZED,
    AttentionContext,
    CtcConfig,
    EncoderConfig,
    FeatureConfig,
    IlmPair,
    ModelConfig,
    TransducerConfig,
)

FEATURES = FeatureConfig(16000, 400, 160, 512, 80, 0.97, 2**-24)
ENCODER = EncoderConfig(80, 2, 24, 3, 48, 9, True, True, True, 8, 8, ((70, 13), (70, 6), (70, 1), (70, 0)))
TRANSDUCER = TransducerConfig(64, 16, 1, 20, "relu", ())


def test_contexts_are_chosen_among_the_trained_ones():
    assert ENCODER.select_context(None) == AttentionContext(70, 6)
    assert ENCODER.select_context(AttentionContext(70, 1)).chunk_encoder_frames == 2
    with pytest.raises(SettingError, match=r"\[70,2\] is not one of this checkpoint's: \[70,13\] \[70,6\]"):
        ENCODER.select_context(AttentionContext(70, 2))


@pytest.mark.parametrize(
    ("factor", "contexts", "default"),
    [
        (8, ((70, 13), (70, 6), (70, 0)), (70, 6)),
        (8, ((14, 6), (70, 6)), (14, 6)),
        (8, ((70, 13), (70, 0)), (70, 13)),
        (4, ((70, 6), (140, 13)), (140, 13)),
    ],
)
def test_the_default_context_has_chunks_of_560_ms_if_the_checkpoint_has_them(factor, contexts, default):
    encoder = dataclasses.replace(ENCODER, subsampling_factor=factor, contexts=contexts)
    assert encoder.default_context == default


def test_transducer_outputs():
    assert (TRANSDUCER.is_tdt, TRANSDUCER.joint_outputs) == (False, 65)
    tdt = dataclasses.replace(TRANSDUCER, tdt_durations=[0, 2, 4])
    assert (tdt.is_tdt, tdt.joint_outputs, tdt.tdt_durations) == (True, 68, (0, 2, 4))


def test_a_factorized_transducer():
    one = dataclasses.replace(TRANSDUCER, kind=FACTORIZED, joint_activation="tanh", ilm_greedy=(0.6, 0.4))
    assert (one.name, one.row_width, TRANSDUCER.name, TRANSDUCER.row_width) == (
        "factorized transducer",
        84,
        "RNN-T",
        20,
    )
    assert (one.ilm_beam, one.ilm_greedy) == (IlmPair(1, 0), IlmPair(0.6, 0.4))
    assert (TRANSDUCER.ilm_beam, TRANSDUCER.ilm_greedy) == (None, None)
    assert ModelConfig(FEATURES, ENCODER, one, CtcConfig(64)).head_name == "factorized transducer + CTC"


@pytest.mark.parametrize(
    ("config", "change", "match"),
    [
        (FEATURES, {"hop_samples": 401}, "window_stride: 401"),
        (FEATURES, {"window_samples": 401}, "even number"),
        (FEATURES, {"fft_samples": 256}, "n_fft: 256"),
        (FEATURES, {"preemphasis": 1.0}, "preemph: 1.0"),
        (FEATURES, {"log_guard": 0.0}, "log_zero_guard_value: 0.0"),
        (FEATURES, {"mel_bins": -80}, "mel_bins: -80"),
        (ENCODER, {"subsampling_factor": 2}, "4 or 8"),
        (ENCODER, {"n_heads": 5}, "a divisor of d_model 24"),
        (ENCODER, {"d_model": 9}, "an even number"),
        (ENCODER, {"conv_kernel_size": 1}, "from 2"),
        (ENCODER, {"contexts": (), "conv_kernel_size": 8}, "an odd number, for centered convolutions"),
        (ENCODER, {"contexts": ((70, 12),)}, "multiple of right"),
        (ENCODER, {"contexts": ((0, 0),)}, "att_context_size"),
        (TRANSDUCER, {"vocabulary_size": 0}, "vocabulary_size: 0"),
        (TRANSDUCER, {"joint_activation": "gelu"}, "relu, tanh, sigmoid"),
        (TRANSDUCER, {"tdt_durations": (1, 1)}, "different numbers"),
        (TRANSDUCER, {"tdt_durations": (0,)}, "at least one above 0"),
        (TRANSDUCER, {"kind": FACTORIZED}, "joint_activation: 'relu' .* tanh for kind factorized"),
        (TRANSDUCER, {"ilm_beam": (1, 0)}, "a pair of a transducer of kind factorized"),
    ],
)
def test_unsupported_values_are_rejected(config, change, match):
    with pytest.raises(CheckpointError, match=match):
        dataclasses.replace(config, **change)


def test_front_end_and_encoder_must_fit():
    with pytest.raises(CheckpointError, match=r"encoder\.feat_in: 128 .* preprocessor\.features 80"):
        ModelConfig(FEATURES, dataclasses.replace(ENCODER, mel_bins=128), TRANSDUCER)
