"""MWER of a NeMo model's RNN-T, whose weights are also those of a head of Penstock."""

from pathlib import Path

import torch
from omegaconf import OmegaConf

from penstock.model.config import TransducerConfig
from penstock.model.nemo.config import read_nemo_config
from penstock.model.tokenizer import Tokenizer
from recipes.training.mwer import MwerConfig, MwerLoss, MwerSteps
from recipes.training.nbest import NBestSearch
from recipes.training.standard_head import StandardHead
from recipes.training.trainer import TrainerConfig


def mwer_steps(name: str, model: torch.nn.Module, tokenizer: Path, weight: float) -> MwerSteps:
    """MWER for a trainer's model `name`; tokenizer: SentencePiece file."""
    config = read_nemo_config(OmegaConf.to_container(model.cfg, resolve=True)).model
    head = tied_head(model, config.transducer, config.encoder.d_model, TrainerConfig.joint_dropout)
    # The usual losses are those of the reference.
    without_reference = MwerConfig(reference_weight=0.0)
    loss = MwerLoss(head, NBestSearch(config, head), Tokenizer(tokenizer).decode, without_reference)
    return MwerSteps(name, loss, weight)


def tied_head(model: torch.nn.Module, config: TransducerConfig, d_model: int, dropout: float) -> StandardHead:
    """A head whose weights are the very parameters of `model`'s predictor and joint, gradients included.

    config: of the head; d_model: width of the encoder frames. ValueError for a TDT model.
    """
    head = StandardHead(config, d_model, dropout)
    # NeMo's embedding: it keeps the start, the row of blank, at zero.
    head.predictor["embedding"] = model.decoder.prediction["embed"]
    for name, weight in model.decoder.prediction["dec_rnn"].lstm.named_parameters():
        setattr(head.predictor["lstm"], name, weight)
    head.joint.update({"encoder": model.joint.enc, "predictor": model.joint.pred, "output": model.joint.joint_net[-1]})
    return head
