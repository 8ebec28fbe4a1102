"""Writes one random offline model in four formats, for `make side-by-side-offline`. Needs NeMo, Transformers and onnx.

    python -m scripts.random_offline DIR     # DIR/model.nemo, DIR/bundle, DIR/transformers, DIR/onnx/model.onnx

17 layers of width 512 with a CTC head, as NeMo's large FastConformer. The ONNX file is NeMo's own export in float32,
which onnx-asr and sherpa-onnx run.
"""

import re
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from nemo.collections.asr.models import ASRModel
from transformers import ParakeetCTCConfig, ParakeetFeatureExtractor, ParakeetForCTC, ParakeetProcessor

from penstock.model.nemo.importer import import_nemo
from tests.helpers.offline_models import OFFLINE
from tests.helpers.oracle.nemo_models import ModelSpec, build_ctc_model
from tests.helpers.oracle.offline_models import EVERYTHING
from tests.helpers.oracle.signals import make_signals
from tests.helpers.oracle.transformers_models import SPECS, make_processor
from tests.helpers.transformers_files import RENAMED

_SPEC = ModelSpec(
    "offline_large", 70, norm="batch_norm", contexts=EVERYTHING, encoder=OFFLINE,
    preprocessor={"normalize": "per_feature"}, d_model=512, n_heads=8, n_layers=17, ff_expansion=4, channels=256,
)  # fmt: skip
_RENAMED = {
    r"encoder\.pre_encode\.conv\.": "encoder.subsampling.layers.",
    r"^decoder\.decoder_layers\.0\.": "ctc_head.",
    **RENAMED,
}


def main() -> None:
    """Command line."""
    directory = Path(sys.argv[1])
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "onnx").mkdir(parents=True)
    signals = {name: samples.astype(np.float32) / 32768 for name, samples in make_signals().items()}
    with tempfile.TemporaryDirectory() as workspace:
        model = build_ctc_model(_SPEC, Path(workspace), signals)
        model.preprocessor.featurizer.dither = 0.0
        model.save_to(str(directory / "model.nemo"))
        export_transformers(
            model, (Path(workspace) / f"{_SPEC.name}_tokenizer" / "tokenizer.model").read_bytes(), directory
        )
    import_nemo(directory / "model.nemo", directory / "bundle")
    model.export(str(directory / "onnx" / "model.onnx"))


def export_transformers(model: ASRModel, tokenizer: bytes, directory: Path) -> None:
    """Saves the same weights by Transformers' own classes."""
    labels = model.decoder.num_classes_with_blank - 1
    config = ParakeetCTCConfig(
        vocab_size=labels + 1,
        pad_token_id=labels,
        encoder_config={
            "attention_bias": _SPEC.use_bias, "convolution_bias": _SPEC.use_bias, "conv_kernel_size": _SPEC.kernel,
            "hidden_size": _SPEC.d_model, "intermediate_size": _SPEC.ff_expansion * _SPEC.d_model,
            "num_attention_heads": _SPEC.n_heads, "num_hidden_layers": _SPEC.n_layers,
            "num_mel_bins": _SPEC.mel_bins, "scale_input": _SPEC.xscaling,
            "subsampling_conv_channels": _SPEC.channels, "subsampling_factor": _SPEC.factor,
        },
    )  # fmt: skip
    copy = ParakeetForCTC(config).eval()
    copy.load_state_dict(
        {renamed(name): each for name, each in model.state_dict().items() if not name.startswith("preprocessor.")}
    )
    front_end = ParakeetFeatureExtractor(feature_size=_SPEC.mel_bins)
    processor = ParakeetProcessor(front_end, make_processor(SPECS[0], tokenizer).tokenizer, decoder_type="ctc")
    copy.save_pretrained(directory / "transformers")
    processor.save_pretrained(directory / "transformers")


def renamed(name: str) -> str:
    """NeMo's name of a tensor in Transformers."""
    for pattern, replacement in _RENAMED.items():
        name = re.sub(pattern, replacement, name)
    return name


if __name__ == "__main__":
    with torch.inference_mode(False):
        main()
