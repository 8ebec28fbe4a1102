"""Tiny offline models with random weights, as NeMo's objects and as imported bundles. Needs NeMo (extra `oracle`)."""

import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from penstock.model.nemo.importer import import_nemo
from tests.helpers.offline_models import OFFLINE
from tests.helpers.oracle.models import OracleModel
from tests.helpers.oracle.nemo_models import ModelSpec, build_ctc_model, build_model
from tests.helpers.oracle.signals import make_signals

EVERYTHING = [-1, -1]
"""The attention context of an offline model, in NeMo."""
CTC = "offline_ctc"
_PARAKEET_V3 = {"use_bias": False, "xscaling": False, "mel_bins": 128, "front_end": "mel128"}
_workspace = tempfile.TemporaryDirectory(prefix="penstock-oracle-")


def _spec(name: str, seed: int, **values: object) -> ModelSpec:
    options = {"norm": "batch_norm", "contexts": EVERYTHING, **values}
    return ModelSpec(name, seed, encoder=OFFLINE, preprocessor={"normalize": "per_feature"}, **options)


SPECS = (
    _spec("offline_rnnt", 61, hybrid=False, predictor_layers=2),  # as parakeet-rnnt
    _spec("offline_tdt", 62, hybrid=False, durations=(0, 1, 2, 3, 4), predictor_layers=2, **_PARAKEET_V3),  # as v2, v3
    _spec("offline_tdt_biases", 63, hybrid=False, durations=(0, 1, 2, 3, 4), xscaling=False, kernel=5, n_heads=4),
    _spec(CTC, 64),  # as parakeet-ctc
    _spec("offline_rnnt_hybrid", 65, untie_biases=False, joint_dropout=0.0, d_model=32, n_heads=4),
    _spec("offline_tdt_hybrid", 66, durations=(0, 1, 2, 3, 4), channels=12, ff_expansion=4),  # as parakeet-tdt_ctc
    _spec("offline_tdt_gaps", 67, hybrid=False, durations=(0, 2, 4), untie_biases=False, **_PARAKEET_V3),
    _spec("offline_layer_norm", 68, norm="layer_norm", factor=4, kernel=7, activation="tanh", d_model=16, n_heads=2),
)  # fmt: skip
NAMES = tuple(spec.name for spec in SPECS)
TRANSDUCERS = tuple(name for name in NAMES if name != CTC)


@cache
def offline_model(name: str) -> OracleModel:
    """The model called `name`."""
    spec = next(spec for spec in SPECS if spec.name == name)
    workspace = Path(_workspace.name)
    signals = {name: samples.astype(np.float32) / 32768 for name, samples in make_signals().items()}
    model = (build_ctc_model if name == CTC else build_model)(spec, workspace, signals)
    model.preprocessor.featurizer.dither = 0.0
    path = workspace / f"{name}.nemo"
    model.save_to(str(path))
    return OracleModel(name, model, import_nemo(path, workspace / name), tuple(signals.values()))
