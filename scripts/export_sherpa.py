"""Exports a NeMo streaming Transducer for sherpa-onnx, one folder per context. Needs NeMo (`oracle`) and onnx.

    python scripts/export_sherpa.py FILE.nemo DIR            # DIR/70_6/{encoder,decoder,joiner}.onnx and tokens.txt ...

For `python -m benchmarks.recognizer --with-sherpa DIR` and `python -m benchmarks.large`, which also quantizes the files
and exports offline models. The weights stay float32. The metadata keys are those that sherpa-onnx reads from its own
exports of such models.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import onnx
import torch
from nemo.collections.asr.models import ASRModel
from nemo.utils import logging
from onnxruntime.quantization import QuantType, quantize_dynamic

PARTS = ("encoder", "decoder", "joiner")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nemo", metavar="FILE.nemo", type=Path)
    parser.add_argument("directory", metavar="DIR", type=Path)
    arguments = parser.parse_args()
    logging.setLevel("ERROR")
    model = ASRModel.restore_from(str(arguments.nemo), map_location="cpu").eval()
    for context in model.encoder.att_context_size_all:
        export(model, context, arguments.directory / f"{context[0]}_{context[1]}")


@torch.no_grad()
def export(model: ASRModel, context: list[int] | None, directory: Path) -> None:
    """Writes the models of one context, or of an offline model."""
    directory.mkdir(parents=True, exist_ok=True)
    if context is not None:
        model.encoder.set_default_att_context_size(context)
        model.encoder.setup_streaming_params()
        model.set_export_config({"cache_support": "True"})
    for part, name in zip((model.encoder, model.decoder, model.joint), PARTS, strict=True):
        with tempfile.TemporaryDirectory(dir=directory) as scratch:  # above 2 GB it gets a file for each tensor
            part.export(f"{scratch}/{name}.onnx")
            values = metadata(model, context is not None) if name == "encoder" else {}
            save(onnx.load(f"{scratch}/{name}.onnx"), values, directory / f"{name}.onnx")
    symbols = [*model.joint.vocabulary, "<blk>"]
    lines = [f"{symbol} {number}\n" for number, symbol in enumerate(symbols)]
    (directory / "tokens.txt").write_text("".join(lines), encoding="utf-8")
    print(directory)


def metadata(model: ASRModel, is_streaming: bool) -> dict[str, object]:
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


def save(model: onnx.ModelProto, values: dict[str, object], path: Path) -> None:
    """Writes a file with metadata, and its weights beside it, which may exceed the 2 GB of a file."""
    onnx.helper.set_model_props(model, {key: str(value) for key, value in values.items()})
    weights = path.with_suffix(".data")
    weights.unlink(missing_ok=True)  # they would be appended
    onnx.save(model, path, save_as_external_data=True, location=weights.name)


def quantize(source: Path, directory: Path) -> None:
    """Writes an exported model in int8, as sherpa-onnx's scripts for models of this size do."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in PARTS:
        quantize_dynamic(source / f"{name}.onnx", directory / f"{name}.onnx", weight_type=QuantType.QUInt8)
    shutil.copy(source / "tokens.txt", directory)


if __name__ == "__main__":
    main()
