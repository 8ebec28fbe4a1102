"""Exports a NeMo streaming Transducer for sherpa-onnx, one folder per context. Needs NeMo (`oracle`) and onnx.

    python scripts/export_sherpa.py FILE.nemo DIR            # DIR/70_6/{encoder,decoder,joiner}.onnx and tokens.txt ...

For `python -m benchmarks.recognizer --with-sherpa DIR`. The weights stay float32. The metadata keys are those that
sherpa-onnx reads from its own exports of such models.
"""

import argparse
from pathlib import Path

import onnx
import torch
from nemo.collections.asr.models import ASRModel
from nemo.utils import logging


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
def export(model: ASRModel, context: list[int], directory: Path) -> None:
    """Writes one context's models."""
    directory.mkdir(parents=True, exist_ok=True)
    model.encoder.set_default_att_context_size(context)
    model.encoder.setup_streaming_params()
    model.set_export_config({"decoder_type": "rnnt", "cache_support": "True"})
    for part, name in ((model.encoder, "encoder"), (model.decoder, "decoder"), (model.joint, "joiner")):
        part.export(str(directory / f"{name}.onnx"))
    add_metadata(directory / "encoder.onnx", metadata(model))
    symbols = [*model.joint.vocabulary, "<blk>"]
    lines = [f"{symbol} {number}\n" for number, symbol in enumerate(symbols)]
    (directory / "tokens.txt").write_text("".join(lines), encoding="utf-8")
    print(directory)


def metadata(model: ASRModel) -> dict[str, object]:
    """Metadata for sherpa-onnx: the encoder's window and caches, and the predictor."""
    encoder, streaming = model.encoder, model.encoder.streaming_cfg
    chunk = streaming.chunk_size[1]
    return {
        "vocab_size": model.decoder.vocab_size,
        "window_size": chunk + streaming.pre_encode_cache_size[1],
        "chunk_shift": chunk,
        "normalize_type": "NA",
        "cache_last_channel_dim1": len(encoder.layers),
        "cache_last_channel_dim2": streaming.last_channel_cache_size,
        "cache_last_channel_dim3": encoder.d_model,
        "cache_last_time_dim1": len(encoder.layers),
        "cache_last_time_dim2": encoder.d_model,
        "cache_last_time_dim3": encoder.conv_context_size[0],
        "pred_rnn_layers": model.decoder.pred_rnn_layers,
        "pred_hidden": model.decoder.pred_hidden,
        "subsampling_factor": encoder.subsampling_factor,
        "feat_dim": encoder._feat_in,
        "model_type": type(model).__name__,
        "version": 1,
    }


def add_metadata(path: Path, values: dict[str, object]) -> None:
    """Adds metadata to an ONNX file."""
    model = onnx.load(path)
    onnx.helper.set_model_props(model, {key: str(value) for key, value in values.items()})
    onnx.save(model, path)


if __name__ == "__main__":
    main()
