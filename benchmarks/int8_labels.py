"""Measures the share of labels that int8 changes, with 8-bit and 7-bit inputs, on any CPU.

    python -m benchmarks.int8_labels MANIFEST ... [--models BUNDLE ...]

All products of an encoder and of a predictor's LSTM are in int8, however small. They are computed in float32 from the
same integers, whose sums are exact up to 1,040 inputs: `torch`'s own products with 8-bit inputs need VNNI. An edit of a
label is one that turns those of float32 into those of int8 (Levenshtein).
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import torch
from rapidfuzz.distance import Levenshtein

from benchmarks.results import ROOT, progress
from penstock import linear
from penstock.encoder import encoder, int8, precision
from penstock.errors import RunError
from penstock.evaluation.manifest import read_manifest
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.pipeline.options.decoding_config import DEFAULT_DECODING
from penstock.pipeline.stages import decoder
from penstock.reporting import markdown_table
from penstock.transcription.files import FileTranscriber
from penstock.transcription.offline import open_recognizer

MODELS = [ROOT / "models" / name for name in ("an4-rnnt-hybrid", "an4-tdt-hybrid", "an4-offline")]
BATCH = 16
WIDTHS = (8, 7)
Packed = tuple[torch.Tensor, torch.Tensor]


def _pack(weight: torch.Tensor) -> Packed:
    numbers, largest = int8.quantize(weight)
    return numbers.float().t().contiguous(), largest / 127


def _multiply(x: torch.Tensor, largest: int, packed: Packed) -> torch.Tensor:
    numbers, scales = packed
    return (x * largest).round() @ numbers * (scales / largest)


def labels_of(model: Checkpoint, context: AttentionContext | None, files: Sequence[Path], bits: int) -> list[list[int]]:
    """The labels of each file; bits: of int8 inputs, 0 for float32."""
    with (
        patch.object(linear, "MIN_PACKED_NUMBERS", 1),
        patch.object(encoder, "_OPENVINO_NUMBERS", ()),
        patch.object(int8, "activation_bits", lambda: bits),
        patch.object(precision, "activation_bits", lambda: bits),
        patch.object(decoder, "activation_bits", lambda: bits),
        patch.object(int8, "_pack", _pack),
        patch.object(int8, "_multiply", _multiply),
    ):
        name = precision.INT8 if bits else precision.FLOAT32
        recognizer = open_recognizer(model, context, BATCH, "cpu", DEFAULT_DECODING, None, None, name)
        transcripts = list(FileTranscriber(recognizer, recognizer.chunk_samples({})).transcribe(files))
    if errors := [each.error for each in transcripts if each.error]:
        raise RunError(errors[0])
    return [[token.id for token in each.tokens] for each in transcripts]


def rows(models: Sequence[Path], files: Sequence[Path]) -> Iterator[list[str]]:
    """Model, context, labels, and for each width the share that changes, in percent."""
    for model in map(Checkpoint, models):
        for context in model.config.encoder.contexts or [None]:
            exact = labels_of(model, context, files, 0)
            count = sum(map(len, exact))
            row = [model.directory.name, str(context or "file"), f"{count:,}"]
            for bits in WIDTHS:
                progress(f"{row[0]} {row[1]} {bits} bits")
                changed = sum(map(Levenshtein.distance, exact, labels_of(model, context, files, bits)))
                row.append(f"{100 * changed / count:.2f}")
            yield row


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("manifests", type=Path, nargs="+", help="recordings; their texts are not used")
    parser.add_argument("--models", type=Path, nargs="+", default=MODELS, help="bundles; default: the bundled ones")
    args = parser.parse_args()
    torch.set_num_threads(1)
    files = [each.audio for path in args.manifests for each in read_manifest(path)]
    header = ["model", "context", "labels", *(f"{bits} bits, %" for bits in WIDTHS)]
    print(markdown_table(header, list(rows(args.models, files)), left=2))


if __name__ == "__main__":
    main()
