"""Writes one random offline model in four formats, for `make benchmark NAME=side-by-side-offline`.

Needs NeMo, Transformers and onnx.

    python -m scripts.random_offline DIR     # DIR/model.nemo, DIR/bundle, DIR/transformers, DIR/onnx/model.onnx
    python -m scripts.random_offline DIR --layers 24 --width 1024 --no-onnx

17 layers of width 512 with a CTC head, as NeMo's large FastConformer; with 24 of 1024 as Parakeet 0.6B. The ONNX file
is NeMo's own export in float32, which onnx-asr and sherpa-onnx run.
"""

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from nemo.collections.asr.models import ASRModel
from transformers import ParakeetCTCConfig, ParakeetFeatureExtractor, ParakeetForCTC, ParakeetProcessor

from benchmarks.nemo_models import build_ctc_model
from benchmarks.nemo_specs import ModelSpec
from benchmarks.random_models import EVERYTHING, OFFLINE
from benchmarks.signals import make_signals
from benchmarks.transformers_models import make_processor, renamed
from penstock.model.nemo.importer import import_nemo

_SPEC = ModelSpec(
    "offline_large", 70, norm="batch_norm", contexts=EVERYTHING, encoder=OFFLINE,
    preprocessor={"normalize": "per_feature"}, d_model=512, n_heads=8, n_layers=17, ff_expansion=4, channels=256,
)  # fmt: skip


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--layers", type=int, default=17, metavar="N", help="of the encoder (17)")
    parser.add_argument("--width", type=int, default=512, metavar="N", help="of the encoder (512)")
    parser.add_argument("--no-onnx", action="store_true", help="without the ONNX file")
    chosen = parser.parse_args()
    directory, spec = chosen.directory, replace(_SPEC, n_layers=chosen.layers, d_model=chosen.width)
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "onnx").mkdir(parents=True)
    signals = {name: samples.astype(np.float32) / 32768 for name, samples in make_signals().items()}
    with tempfile.TemporaryDirectory() as workspace:
        model = build_ctc_model(spec, Path(workspace), signals)
        model.preprocessor.featurizer.dither = 0.0
        model.save_to(str(directory / "model.nemo"))
        tokenizer = (Path(workspace) / f"{spec.name}_tokenizer" / "tokenizer.model").read_bytes()
        export_transformers(model, spec, tokenizer, directory)
    import_nemo(directory / "model.nemo", directory / "bundle")
    if not chosen.no_onnx:
        model.export(str(directory / "onnx" / "model.onnx"))


def export_transformers(model: ASRModel, spec: ModelSpec, tokenizer: bytes, directory: Path) -> None:
    """Saves the same weights by Transformers' own classes."""
    labels = model.decoder.num_classes_with_blank - 1
    config = ParakeetCTCConfig(
        vocab_size=labels + 1,
        pad_token_id=labels,
        encoder_config={
            "attention_bias": spec.use_bias, "convolution_bias": spec.use_bias, "conv_kernel_size": spec.kernel,
            "hidden_size": spec.d_model, "intermediate_size": spec.ff_expansion * spec.d_model,
            "num_attention_heads": spec.n_heads, "num_hidden_layers": spec.n_layers,
            "num_mel_bins": spec.mel_bins, "scale_input": spec.xscaling,
            "subsampling_conv_channels": spec.channels, "subsampling_factor": spec.factor,
        },
    )  # fmt: skip
    copy = ParakeetForCTC(config).eval()
    copy.load_state_dict(
        {
            renamed(name, is_offline=True): each
            for name, each in model.state_dict().items()
            if not name.startswith("preprocessor.")
        }
    )
    front_end = ParakeetFeatureExtractor(feature_size=spec.mel_bins)
    of_tokens = make_processor(tokenizer, spec.mel_bins, (0,)).tokenizer
    processor = ParakeetProcessor(front_end, of_tokens, decoder_type="ctc")
    copy.save_pretrained(directory / "transformers")
    processor.save_pretrained(directory / "transformers")


if __name__ == "__main__":
    with torch.inference_mode(False):
        main()
