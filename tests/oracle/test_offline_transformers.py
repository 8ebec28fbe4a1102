"""Offline models in Transformers format against Transformers: files, log-mel, encoder frames, labels and frames."""

import json

import pytest

pytest.importorskip("transformers", reason="needs the extra `oracle-hf`")

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from transformers import (
    ParakeetCTCConfig,
    ParakeetFeatureExtractor,
    ParakeetForCTC,
    ParakeetForRNNT,
    ParakeetForTDT,
    ParakeetProcessor,
    ParakeetRNNTConfig,
    ParakeetTDTConfig,
)

from benchmarks.nemo_specs import float_signals
from penstock import OfflineRecognizer
from penstock.encoder.window.encoder import WindowEncoder
from penstock.frontend.log_mel import LogMel
from penstock.frontend.window_mel import WindowMel
from penstock.model.transformers.importer import import_transformers
from tests.helpers.oracle.transformers_models import SPECS as STREAMING
from tests.helpers.oracle.transformers_models import OnBothSides, between_leads, processor_of, random_tensor

pytestmark = pytest.mark.oracle
MEL_TOLERANCE, TOLERANCE = 1e-5, 1e-4

_LABELS, _BLANK_RATE, _RARELY_ZERO = 48, 0.6, 4.0
_workspace = tempfile.TemporaryDirectory(prefix="penstock-oracle-")
_PLAIN = {"attention_bias": False, "convolution_bias": False, "scale_input": False}
_CLASSES = {
    "ctc": (ParakeetCTCConfig, ParakeetForCTC),
    "rnnt": (ParakeetRNNTConfig, ParakeetForRNNT),
    "tdt": (ParakeetTDTConfig, ParakeetForTDT),
}


class ParakeetSpec(NamedTuple):
    """Differences between the models."""

    kind: str
    seed: int
    mel_bins: int
    encoder: dict[str, object]
    decoder: dict[str, object]


SPECS = {
    "tdt_v3": ParakeetSpec("tdt", 1, 128, _PLAIN, {"decoder_hidden_size": 20, "num_decoder_layers": 2}),
    "rnnt": ParakeetSpec(
        "rnnt", 2, 80, {"subsampling_factor": 8}, {"decoder_hidden_size": 12, "num_decoder_layers": 1}
    ),
    "ctc": ParakeetSpec("ctc", 3, 80, {"conv_kernel_size": 5}, {}),
    "tdt_short": ParakeetSpec(
        "tdt",
        4,
        80,
        {"subsampling_factor": 4},
        {"decoder_hidden_size": 16, "durations": [0, 1, 2], "hidden_act": "tanh"},
    ),
}


@dataclass(frozen=True)
class ParakeetModel(OnBothSides):
    """A CTC model or an RNN-T."""

    def encode_mel(self, mel: torch.Tensor) -> torch.Tensor:
        """Encoder output [T, D] for log-mel [N, F]."""
        with torch.no_grad():
            mask = torch.ones(1, len(mel), dtype=torch.bool)
            output = self.model.encoder(input_features=mel[None], attention_mask=mask)
        return output.last_hidden_state[0][output.attention_mask[0].bool()]

    def decode(self, samples: np.ndarray) -> tuple[list[int], list[int]]:
        """Greedy labels and their encoder frames."""
        features = self.features(samples)
        blank = self.checkpoint.config.vocabulary_size
        with torch.no_grad():
            if isinstance(self.model, ParakeetForCTC):
                best = self.model.generate(**features)[0].tolist()
                starts = [i for i, label in enumerate(best) if label != blank and (i == 0 or best[i - 1] != label)]
                frames = len(self.encode_mel(self.mel(samples)))
                return [best[i] for i in starts if i < frames], [i for i in starts if i < frames]
            limit = 12 * features["input_features"].shape[1]  # never reached
            output = self.model.generate(**features, max_new_tokens=limit)
        labels, durations = output.sequences[0], output.durations[0]
        frames = (durations.cumsum(0) - durations).tolist()
        kept = [index for index, label in enumerate(labels.tolist()) if label != blank]
        return [int(labels[index]) for index in kept], [frames[index] for index in kept]


@cache
def parakeet(name: str) -> ParakeetModel:
    """The model called `name`, built, saved by Transformers and imported once a process."""
    spec = SPECS[name]
    signals = tuple(float_signals().values())
    tokenizer = processor_of(STREAMING[0]).tokenizer
    processor = ParakeetProcessor(
        ParakeetFeatureExtractor(feature_size=spec.mel_bins), tokenizer, decoder_type=spec.kind
    )
    model = _random_model(spec)
    directory = Path(_workspace.name) / name
    one = ParakeetModel(model, processor, directory, None, signals)  # type: ignore[arg-type] - follows
    _set_blank_rate(one)
    model.save_pretrained(directory)
    processor.save_pretrained(directory)
    checkpoint = import_transformers(directory, Path(_workspace.name) / f"{name}-bundle")
    return ParakeetModel(model, processor, directory, checkpoint, signals)


def _random_model(spec: ParakeetSpec) -> ParakeetForCTC | ParakeetForRNNT:
    sizes = {
        "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 48,
        "conv_kernel_size": 9, "subsampling_conv_channels": 8, "num_mel_bins": spec.mel_bins,
    }  # fmt: skip
    config_class, model_class = _CLASSES[spec.kind]
    blank = {"pad_token_id": _LABELS} if spec.kind == "ctc" else {"blank_token_id": _LABELS}
    config = config_class(vocab_size=_LABELS + 1, encoder_config=sizes | spec.encoder, **blank, **spec.decoder)
    model = model_class(config).eval()
    if spec.kind != "ctc":
        model.generation_config.decoder_start_token_id = _LABELS
    generator = torch.Generator().manual_seed(spec.seed)
    for name, parameter in model.named_parameters():
        parameter.data = random_tensor(name, parameter.shape, generator)
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.uniform_(0.3, 2.0, generator=generator)
    return model


def _set_blank_rate(one: ParakeetModel) -> None:
    """Chooses the blank's bias such that about `_BLANK_RATE` of the frames are blank at the start."""
    with torch.no_grad():
        frames = torch.cat([one.encode_mel(one.mel(samples)) for samples in one.signals])
        if isinstance(one.model, ParakeetForCTC):
            head, logits = one.model.ctc_head, one.model.ctc_head(frames[None])[0]
        else:
            head = one.model.joint.head
            prediction = one.model.decoder(torch.tensor([[_LABELS]]))[0]
            projected = one.model.encoder_projector(frames)
            logits = one.model.joint(decoder_hidden_states=prediction, encoder_hidden_states=projected)
    head.bias.data[_LABELS + 1 : _LABELS + 2] -= _RARELY_ZERO  # the duration 0 of TDT
    leads = logits[:, :_LABELS].amax(dim=1) - logits[:, _LABELS]
    head.bias.data[_LABELS] += between_leads(leads, _BLANK_RATE)


@pytest.mark.parametrize("name", SPECS)
def test_log_mel_and_encoder(name):
    one = parakeet(name)
    tensors = one.checkpoint.tensors("features.")
    log_mel = LogMel(one.checkpoint.config.features, tensors["features.window"], tensors["features.mel_filterbank"])
    mel_of, mels = WindowMel(log_mel), [one.mel(samples) for samples in one.signals]
    for samples, mel in zip(one.signals, mels, strict=True):
        torch.testing.assert_close(mel_of(torch.from_numpy(samples)), mel, rtol=0, atol=MEL_TOLERANCE)
    for mel, found in zip(mels, WindowEncoder(one.checkpoint).encode(mels), strict=True):
        torch.testing.assert_close(found, one.encode_mel(mel), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", SPECS)
def test_labels_and_frames(name):
    one, count = parakeet(name), 0
    results = OfflineRecognizer(one.checkpoint.directory).transcribe(one.signals)
    for samples, result in zip(one.signals, results, strict=True):
        found = [token.id for token in result.tokens], [token.timestamp for token in result.tokens]
        assert found == one.decode(samples)
        count += len(result.tokens)
    assert count > 10


def test_the_front_end_may_be_where_older_releases_write_it(tmp_path):
    one = parakeet("tdt_v3")
    for path in one.directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    processor = json.loads((tmp_path / "processor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor["feature_extractor"]))
    (tmp_path / "processor_config.json").unlink()
    found = import_transformers(tmp_path, tmp_path / "bundle")
    assert found.config == one.checkpoint.config
