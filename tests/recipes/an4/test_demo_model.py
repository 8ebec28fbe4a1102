"""Files of the demonstration models; the oracle's environment has NeMo."""

import numpy as np
import pytest

pytest.importorskip("nemo.collections.asr", reason="extra `train`")

import torch
from nemo.collections.asr.models import EncDecHybridRNNTCTCBPEModel

from recipes.an4.demo_model import (
    DemoModelConfig,
    build_model,
    condition_input,
    release_input,
    set_label_priors,
    share_encoder,
    standardize_subsampling,
    train_tokenizer,
)
from recipes.training.batches import Batch
from recipes.training.trainer import Trainer, TrainerConfig

pytestmark = pytest.mark.oracle
SMALL = DemoModelConfig(layers=1, width=16, heads=2, subsampling_channels=8, hidden=12)
TRANSCRIPTS = ["one two three four one one", "five six seven one"]


def made_up_mels() -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [(-11.5 + 3.5 * random.standard_normal((n, 80))).astype(np.float32) for n in (40, 120, 300, 100, 160)]


def test_what_is_exported_is_the_average_of_what_was_trained(tmp_path):
    """In the order of recipes/an4/train.py, with a stop in between."""
    tokenizer = train_tokenizer(TRANSCRIPTS, tmp_path, 40)
    first, (before, _) = trainer_of_new_models(tokenizer)
    train(first, steps=2)
    first.save(tmp_path / "state.pt")
    second, (rnnt, tdt) = trainer_of_new_models(tokenizer)
    second.load(tmp_path / "state.pt")
    train(second, steps=2)
    second.average.swap(second.module)
    wanted = {name: logits_of(model) for name, model in (("rnnt", rnnt), ("tdt", tdt))}
    assert not torch.allclose(wanted["rnnt"][0], logits_of(before)[0], atol=1e-4), "nothing was learned"
    release_input(rnnt)
    for name, model in (("rnnt", rnnt), ("tdt", tdt)):
        path = str(tmp_path / f"{name}.nemo")
        model.save_to(path)
        found = logits_of(EncDecHybridRNNTCTCBPEModel.restore_from(path, map_location="cpu"))
        for one, other in zip(found, wanted[name], strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def trainer_of_new_models(tokenizer) -> tuple[Trainer, tuple[torch.nn.Module, torch.nn.Module]]:
    torch.manual_seed(5)
    durations = {"rnnt": (), "tdt": (0, 1, 2)}
    models = {name: build_model(SMALL, tokenizer, found) for name, found in durations.items()}
    standardize_subsampling(models["rnnt"], made_up_mels())
    for model in models.values():
        set_label_priors(model, TRANSCRIPTS)
    condition_input(models["rnnt"], made_up_mels())
    share_encoder(models["rnnt"], models["tdt"])
    config = TrainerConfig(steps=4, peak_learning_rate=3e-2, average_decay=0.5)
    return Trainer(models, durations, config), (models["rnnt"], models["tdt"])


def train(trainer: Trainer, steps: int) -> None:
    mel = torch.from_numpy(np.stack([mel[:100].T for mel in made_up_mels() if len(mel) >= 100]))
    labels = torch.tensor([[1, 2, 3], [2, 2, 0], [4, 0, 0], [5, 1, 4]])
    batch = Batch(mel, torch.full((4,), 100), labels, torch.tensor([3, 2, 1, 3]))
    for _ in range(steps):
        trainer.train_step(batch)


@torch.no_grad()
def logits_of(model: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the CTC head and of the Transducer's, for sounds and labels that are always the same."""
    model.eval()
    features = torch.from_numpy(made_up_mels()[1].T[None])
    encoded, _ = model.encoder(audio_signal=features, length=torch.tensor([120]))
    predicted = model.decoder(targets=torch.tensor([[1, 2]]), target_length=torch.tensor([2]))[0]
    joint = model.joint.joint(encoded.transpose(1, 2), predicted.transpose(1, 2))
    return model.ctc_decoder(encoder_output=encoded), joint
