"""The importer against NeMo itself: its own archives, its constructors' keys and their defaults."""

import copy
import inspect
from pathlib import Path

import pytest

pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")

import torch
from nemo.collections.asr.modules import (
    AudioToMelSpectrogramPreprocessor,
    ConformerEncoder,
    ConvASRDecoder,
    RNNTDecoder,
    RNNTJoint,
)
from omegaconf import OmegaConf

from benchmarks.nemo_models import build_model
from benchmarks.nemo_specs import SPECS, ModelSpec, float_signals
from penstock.model.nemo.config import read_nemo_config
from penstock.model.nemo.importer import import_nemo

pytestmark = pytest.mark.oracle
SIGNALS = float_signals()
SECTIONS = {
    "preprocessor": AudioToMelSpectrogramPreprocessor,
    "encoder": ConformerEncoder,
    "decoder": RNNTDecoder,
    "joint": RNNTJoint,
}
UNSUPPORTED_DEFAULTS = {  # what a cache-aware model must set
    "encoder": {
        "causal_downsampling", "subsampling", "att_context_size", "att_context_style", "conv_context_size",
    },
    "preprocessor": {"normalize"},
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_model(SPECS[0], tmp_path_factory.mktemp("model"), SIGNALS)


def defaults(section: str) -> dict[str, object]:
    parameters = inspect.signature(SECTIONS[section].__init__).parameters.values()
    known = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    return {name: value for name, value in known.items() if name not in UNSUPPORTED_DEFAULTS.get(section, ())}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_default_of_nemo_is_the_importers(section, model):
    """A key that is absent and one that is written with NeMo's default mean the same; none is unknown."""
    written = OmegaConf.to_container(model.cfg, resolve=True)
    written["preprocessor"]["features"] = written["encoder"]["feat_in"] = defaults("preprocessor")["features"]
    written["decoding"].pop("durations", None)
    absent = copy.deepcopy(written)
    for key, value in defaults(section).items():
        if key not in ("vocabulary", "num_extra_outputs"):
            absent[section].pop(key, None)
            written[section][key] = value
    # Absent biases are also looked for among the tensors.
    assert read_nemo_config(absent)._replace(unsettled=frozenset()) == read_nemo_config(written)


def test_the_ctc_head_has_no_other_shape():
    assert inspect.signature(ConvASRDecoder.__init__).parameters["add_blank"].default is True


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_an_archive_as_nemo_saves_it(spec: ModelSpec, tmp_path: Path):
    model = build_model(spec, tmp_path, SIGNALS)
    model.save_to(str(tmp_path / "model.nemo"))
    checkpoint = import_nemo(tmp_path / "model.nemo", tmp_path / "bundle")
    encoder, tensors = checkpoint.config.encoder, checkpoint.tensors()
    assert [list(context) for context in encoder.contexts] == model.encoder.att_context_size_all
    assert (encoder.d_model, encoder.n_layers) == (model.encoder.d_model, len(model.encoder.layers))
    assert torch.equal(tensors["features.mel_filterbank"], model.preprocessor.featurizer.fb[0])
    norms = sum(p.numel() for m in model.modules() if isinstance(m, torch.nn.BatchNorm1d) for p in m.parameters())
    folded_biases = 0 if encoder.has_conv_layer_norm or encoder.use_bias else encoder.n_layers * encoder.d_model
    tied = 0 if spec.untie_biases else (encoder.n_layers - 1) * 2 * encoder.d_model
    stored = sum(tensor.numel() for name, tensor in tensors.items() if not name.startswith("features."))
    assert stored == sum(p.numel() for p in model.parameters()) - norms + folded_biases + tied
