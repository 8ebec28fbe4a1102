"""Offline models as NeMo's objects and as bundles: tiny ones with random weights, and the bundled one.

Needs NeMo (extra `oracle`).
"""

import tempfile
from functools import cache
from pathlib import Path

from nemo.collections.asr.models import ASRModel

from benchmarks.nemo_models import build_ctc_model, build_model
from benchmarks.nemo_specs import ModelSpec, float_signals
from benchmarks.random_models import EVERYTHING, OFFLINE
from penstock.model.bundle import Checkpoint
from penstock.model.nemo.importer import import_nemo
from recipes.an4.export_nemo import export_nemo
from tests.helpers.offline_models import BUNDLED
from tests.helpers.oracle.models import OracleModel, speech

CTC = "offline_ctc"
_PARAKEET_V3 = {"use_bias": False, "xscaling": False, "mel_bins": 128, "front_end": "mel128"}
_workspace = tempfile.TemporaryDirectory(prefix="penstock-oracle-")


def _spec(name: str, seed: int, **values: object) -> ModelSpec:
    options = {"norm": "batch_norm", "contexts": EVERYTHING, "encoder": OFFLINE, **values}
    return ModelSpec(name, seed, preprocessor={"normalize": "per_feature"}, **options)


SPECS = (
    _spec("offline_rnnt", 61, hybrid=False, predictor_layers=2),  # as parakeet-rnnt
    _spec("offline_tdt", 62, hybrid=False, durations=(0, 1, 2, 3, 4), predictor_layers=2, **_PARAKEET_V3),  # as v2, v3
    _spec("offline_tdt_biases", 63, hybrid=False, durations=(0, 1, 2, 3, 4), xscaling=False, kernel=5, n_heads=4),
    _spec(CTC, 64),  # as parakeet-ctc
    _spec("offline_rnnt_hybrid", 65, untie_biases=False, joint_dropout=0.0, d_model=32, n_heads=4),
    _spec("offline_tdt_hybrid", 66, durations=(0, 1, 2, 3, 4), channels=12, ff_expansion=4),  # as parakeet-tdt_ctc
    _spec("offline_tdt_gaps", 67, hybrid=False, durations=(0, 2, 4), untie_biases=False, **_PARAKEET_V3),
    _spec("offline_layer_norm", 68, norm="layer_norm", factor=4, kernel=7, activation="tanh", d_model=16, n_heads=2),
)
UNIFIED = "offline_unified"
_UNIFIED_SPEC = _spec(
    UNIFIED, 69, hybrid=False, predictor_layers=2, n_layers=3, contexts=[[-1, -1, -1]],
    encoder=OFFLINE | {"att_context_style": "chunked_limited_with_rc", "conv_context_style": "dcc",
                       "att_chunk_context_size": [[14], [1, 2, 5], [0, 1, 4]]},
)  # fmt: skip
"""Spec as parakeet-unified."""
REAL = "real_speech"
"""The bundled model, as NeMo's with the same weights."""
NAMES = (*(spec.name for spec in SPECS), REAL)
TRANSDUCERS = tuple(name for name in NAMES if name != CTC)


@cache
def offline_model(name: str) -> OracleModel:
    """The model called `name`."""
    path = Path(_workspace.name) / f"{name}.nemo"
    if name == REAL:
        export_nemo(Checkpoint(BUNDLED), path)
        model, signals = ASRModel.restore_from(str(path), map_location="cpu").eval(), speech()
    else:
        spec = next(spec for spec in (*SPECS, _UNIFIED_SPEC) if spec.name == name)
        made = float_signals()
        model = (build_ctc_model if name == CTC else build_model)(spec, path.parent, made)
        model.save_to(str(path))
        signals = tuple(made.values())
    model.preprocessor.featurizer.dither = 0.0
    return OracleModel(name, model, import_nemo(path, path.with_suffix("")), signals)
