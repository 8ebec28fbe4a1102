"""Writes a bundled demonstration model as a .nemo file with the same weights. Needs NeMo (`oracle`).

    python -m recipes.an4.export_nemo models/an4-rnnt-hybrid build/an4-rnnt-hybrid.nemo

For baselines with the same weights (`python -m benchmarks.recognizer --with-nemo`, `benchmarks.exports sherpa`) and for
further training.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from nemo.utils import logging
from omegaconf import OmegaConf

from penstock.errors import CheckpointError, PenstockError
from penstock.model.bundle import Checkpoint
from penstock.model.config import ModelConfig
from penstock.model.nemo.config import read_nemo_config
from penstock.model.nemo.weights import source_of
from recipes.an4.demo_model import DemoModelConfig, build_model, write_tokenizer


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", metavar="BUNDLE", type=Path)
    parser.add_argument("nemo", metavar="FILE.nemo", type=Path)
    chosen = parser.parse_args(arguments)
    logging.setLevel("ERROR")
    try:
        chosen.nemo.parent.mkdir(parents=True, exist_ok=True)
        export_nemo(Checkpoint(chosen.bundle), chosen.nemo)
    except (PenstockError, OSError) as error:
        print(f"recipes.an4.export_nemo: error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {chosen.nemo}")
    return 0


def export_nemo(checkpoint: Checkpoint, path: Path) -> None:
    """Writes `path`; importing it gives the same bundle. Raises CheckpointError for another architecture.

    Sizes, contexts and durations are those of the bundle; the rest of the architecture must be that of `demo_model`.
    Import has folded an offline model's batch norms into its convolutions, so the file's batch norms change nothing.
    """
    config = checkpoint.config
    with tempfile.TemporaryDirectory() as workspace:
        tokenizer = write_tokenizer(checkpoint.tokenizer_path.read_bytes(), Path(workspace))
        model = build_model(_sizes(config), tokenizer, config.transducer.tdt_durations)
        built = read_nemo_config(OmegaConf.to_container(model.cfg, resolve=True))
        if built.model != config:
            raise CheckpointError(
                f"{checkpoint.directory}: architecture: only that of the demonstration models is supported"
            )
        state = model.state_dict()
        for name in state:
            if name.endswith("running_var"):
                state[name].fill_(1.0 - torch.nn.BatchNorm1d(1).eps)
        for name, tensor in checkpoint.tensors().items():
            if not name.startswith("features."):  # the window and filterbank come from NeMo
                source = source_of(name, tuple(tensor.shape), built)
                state[source.name] = tensor.reshape(source.shape)
        model.load_state_dict(state)
        _check_features(checkpoint, state)
        model.save_to(str(path))


def _sizes(config: ModelConfig) -> DemoModelConfig:
    contexts = tuple((context.left, context.right) for context in config.encoder.contexts)
    return DemoModelConfig(
        layers=config.encoder.n_layers,
        width=config.encoder.d_model,
        heads=config.encoder.n_heads,
        subsampling_channels=config.encoder.subsampling_channels,
        hidden=config.transducer.predictor_hidden,
        contexts=contexts,
        context_probabilities=tuple(1 / len(contexts) for _ in contexts),
        is_offline=config.encoder.is_offline,
    )


def _check_features(checkpoint: Checkpoint, state: dict[str, torch.Tensor]) -> None:
    ours = checkpoint.tensors("features.")
    for name, theirs in (("features.window", "window"), ("features.mel_filterbank", "fb")):
        if not torch.equal(ours[name], state[f"preprocessor.featurizer.{theirs}"].view_as(ours[name])):
            raise CheckpointError(f"{checkpoint.directory}: tensor {name} is not NeMo's")


if __name__ == "__main__":
    sys.exit(main())
