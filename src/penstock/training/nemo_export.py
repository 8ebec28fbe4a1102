"""A bundle of a demonstration model -> a .nemo file, for whoever measures NeMo itself with the same weights."""

import tempfile
from pathlib import Path

import torch
from omegaconf import OmegaConf

from penstock.checkpoint import Checkpoint
from penstock.config import ModelConfig
from penstock.errors import CheckpointError
from penstock.nemo_config import read_nemo_config
from penstock.nemo_weights import source_of
from penstock.training.demo_model import DemoModelConfig, build_model, write_tokenizer


def export_nemo(checkpoint: Checkpoint, path: Path) -> None:
    """Writes `path`, whose import is the bundle again. CheckpointError where NeMo's model would be another one.

    Of the architecture, sizes, contexts and durations are taken from the bundle; the rest must be as in `demo_model`.
    """
    config = checkpoint.config
    with tempfile.TemporaryDirectory() as workspace:
        tokenizer = write_tokenizer(checkpoint.tokenizer_path.read_bytes(), Path(workspace))
        model = build_model(_sizes(config), tokenizer, config.transducer.tdt_durations)
        built = read_nemo_config(OmegaConf.to_container(model.cfg, resolve=True))
        if built.model != config:
            raise CheckpointError(f"{checkpoint.directory}: accepted: the architecture of the demonstration models")
        state = model.state_dict()
        for name, tensor in checkpoint.tensors().items():
            if not name.startswith("features."):  # NeMo's own window and filterbank, which the bundle has from there
                source = source_of(name, tuple(tensor.shape), built)
                state[source.name] = tensor.reshape(source.shape)
        model.load_state_dict(state)
        _refuse_other_features(checkpoint, state)
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
        context_probabilities=(1 / len(contexts),) * len(contexts),
    )


def _refuse_other_features(checkpoint: Checkpoint, state: dict[str, torch.Tensor]) -> None:
    ours = checkpoint.tensors("features.")
    for name, theirs in (("features.window", "window"), ("features.mel_filterbank", "fb")):
        if not torch.equal(ours[name], state[f"preprocessor.featurizer.{theirs}"].view_as(ours[name])):
            raise CheckpointError(f"{checkpoint.directory}: tensor {name} is not NeMo's")
