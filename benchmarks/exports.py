"""Models with the same weights in the formats of the baselines of `benchmarks.recognizer`.

    python -m benchmarks.exports sherpa FILE.nemo DIR        # DIR/70_6/{encoder,decoder,joiner}.onnx and tokens.txt ...
    python -m benchmarks.exports large DIR [--layers 24] [--width 1024]

sherpa: a NeMo streaming Transducer for sherpa-onnx, one folder per context, in float32. large: a random streaming RNN-T
and a random offline TDT model, as bundles and for sherpa-onnx in float32 and int8, 17 GB. Needs NeMo (`oracle`), onnx.
"""

import argparse
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.baselines import LARGE_MEL_BINS, WHOLE
from benchmarks.nemo_specs import ModelSpec, float_signals
from benchmarks.random_models import EVERYTHING, OFFLINE, random_tokenizer
from benchmarks.recognizer import read_recordings
from loadtest.options import DEFAULT_RECORDINGS
from penstock.errors import PenstockError
from penstock.model.nemo.importer import import_nemo

if TYPE_CHECKING:
    import onnx
    from nemo.collections.asr.models import ASRModel

PARTS = ("encoder", "decoder", "joiner")


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    formats = parser.add_subparsers(required=True)
    sherpa = formats.add_parser("sherpa")
    sherpa.add_argument("source", metavar="FILE.nemo", type=Path)
    sherpa.add_argument("directory", metavar="DIR", type=Path)
    sherpa.set_defaults(task=lambda chosen: write_sherpa(chosen.source, chosen.directory))
    large = formats.add_parser("large")
    large.add_argument("directory", type=Path, metavar="DIR")
    large.add_argument("--layers", type=int, default=24, metavar="N", help="encoder layers (24)")
    large.add_argument("--width", type=int, default=1024, metavar="N", help="encoder width (1024)")
    large.set_defaults(task=write_large)
    chosen = parser.parse_args(arguments)
    try:
        chosen.task(chosen)
    except (PenstockError, OSError) as error:
        print(f"benchmarks.exports: error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {chosen.directory}")
    return 0


def write_sherpa(nemo: Path, directory: Path) -> None:
    """Exports a .nemo file in each of its contexts."""
    from nemo.collections.asr.models import ASRModel
    from nemo.utils import logging

    logging.setLevel("ERROR")
    model = ASRModel.restore_from(str(nemo), map_location="cpu").eval()
    for context in model.encoder.att_context_size_all:
        export_sherpa(model, context, directory / f"{context[0]}_{context[1]}")


@torch.no_grad()
def export_sherpa(model: "ASRModel", context: list[int] | None, directory: Path) -> None:
    """Writes the models of one context, or of an offline model."""
    import onnx

    directory.mkdir(parents=True, exist_ok=True)
    if context is not None:
        model.encoder.set_default_att_context_size(context)
        model.encoder.setup_streaming_params()
        model.set_export_config({"cache_support": "True"})
    for part, name in zip((model.encoder, model.decoder, model.joint), PARTS, strict=True):
        with tempfile.TemporaryDirectory(dir=directory) as scratch:  # above 2 GB it gets a file for each tensor
            part.export(f"{scratch}/{name}.onnx")
            values = _metadata(model, context is not None) if name == "encoder" else {}
            _save(onnx.load(f"{scratch}/{name}.onnx"), values, directory / f"{name}.onnx")
    symbols = [*model.joint.vocabulary, "<blk>"]
    lines = [f"{symbol} {number}\n" for number, symbol in enumerate(symbols)]
    (directory / "tokens.txt").write_text("".join(lines), encoding="utf-8")


def _metadata(model: "ASRModel", is_streaming: bool) -> dict[str, object]:
    """Metadata for sherpa-onnx: the predictor, and a streaming encoder's window and caches."""
    encoder = model.encoder
    values = {
        "vocab_size": model.decoder.vocab_size,
        "normalize_type": model.cfg.preprocessor.normalize,
        "pred_rnn_layers": model.decoder.pred_rnn_layers,
        "pred_hidden": model.decoder.pred_hidden,
        "subsampling_factor": encoder.subsampling_factor,
        "feat_dim": encoder._feat_in,
        "model_type": type(model).__name__,
        "version": 1,
        "url": "tdt" if model.joint.num_extra_outputs else "",  # sherpa-onnx looks for it there
    }
    if not is_streaming:
        return values
    chunk = encoder.streaming_cfg.chunk_size[1]
    return values | {
        "window_size": chunk + encoder.streaming_cfg.pre_encode_cache_size[1],
        "chunk_shift": chunk,
        "cache_last_channel_dim1": len(encoder.layers),
        "cache_last_channel_dim2": encoder.streaming_cfg.last_channel_cache_size,
        "cache_last_channel_dim3": encoder.d_model,
        "cache_last_time_dim1": len(encoder.layers),
        "cache_last_time_dim2": encoder.d_model,
        "cache_last_time_dim3": encoder.conv_context_size[0],
    }


def _save(model: "onnx.ModelProto", values: dict[str, object], path: Path) -> None:
    """Writes a file with metadata, and its weights beside it, which may exceed the 2 GB of a file."""
    import onnx

    onnx.helper.set_model_props(model, {key: str(value) for key, value in values.items()})
    weights = path.with_suffix(".data")
    weights.unlink(missing_ok=True)  # they would be appended
    onnx.save(model, path, save_as_external_data=True, location=weights.name)


def quantize(source: Path, directory: Path) -> None:
    """Writes an exported model in int8, as sherpa-onnx's scripts for models of this size do."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    directory.mkdir(parents=True, exist_ok=True)
    for name in PARTS:
        quantize_dynamic(source / f"{name}.onnx", directory / f"{name}.onnx", weight_type=QuantType.QUInt8)
    shutil.copy(source / "tokens.txt", directory)


@torch.inference_mode(False)
def write_large(chosen: argparse.Namespace) -> None:
    """Writes DIR/streaming and DIR/offline, each with bundle, float32 and int8; what is there stays."""
    from benchmarks.nemo_models import build_model, let_frames_decide

    streaming = ModelSpec(
        "streaming", 81, hybrid=False, use_bias=False, xscaling=False, mel_bins=LARGE_MEL_BINS, d_model=chosen.width,
        n_heads=8, n_layers=chosen.layers, ff_expansion=4, channels=256, predictor_layers=2, predictor_hidden=640,
        joint_hidden=640, contexts=[[70, 6], [70, 1], [70, 0]], tokenizer=random_tokenizer(1024), gzipped=False,
    )  # fmt: skip
    offline = replace(
        streaming, name="offline", durations=(0, 1, 2, 3, 4), norm="batch_norm", contexts=EVERYTHING, encoder=OFFLINE,
        preprocessor={"normalize": "per_feature"},
    )  # fmt: skip
    signals, speech = float_signals(), [each.samples for each in read_recordings(DEFAULT_RECORDINGS)]
    for spec, contexts in ((streaming, streaming.contexts), (offline, [None])):
        folder = chosen.directory / spec.name
        names = [WHOLE if context is None else f"{context[0]}_{context[1]}" for context in contexts]
        if all((folder / "int8" / name / "tokens.txt").exists() for name in names):
            continue
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as workspace:
            model = build_model(spec, Path(workspace), signals)
            if spec.durations:
                let_frames_decide(model, spec, speech)
            model.save_to(f"{workspace}/model.nemo")
            import_nemo(f"{workspace}/model.nemo", folder / "bundle", replace=True)
            for name, context in zip(names, contexts, strict=True):
                export_sherpa(model, context, folder / "float32" / name)
                quantize(folder / "float32" / name, folder / "int8" / name)


if __name__ == "__main__":
    sys.exit(main())
