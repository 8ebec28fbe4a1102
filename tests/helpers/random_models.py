"""Random checkpoints of random configurations: what NeMo's few golden ones do not reach."""

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.sentencepiece_proto import with_texts
from penstock.model.bundle import Checkpoint, tensor_shapes, write_checkpoint
from penstock.model.config import (
    FACTORIZED,
    STANDARD,
    CtcConfig,
    EncoderConfig,
    FeatureConfig,
    IlmPair,
    ModelConfig,
    PromptConfig,
    TransducerConfig,
)
from penstock.model.source_tensors import front_end_tensors
from penstock.model.tokenizer import Tokenizer
from tests.helpers.nemo_files import nemo_members, tokenizer_member
from tests.helpers.reference.greedy import GreedyReference

_VOCABULARY = 48  # tokens of the tokenizer below
_MEL_MEAN, _MEL_DEVIATION = -6.0, 4.0  # about what speech gives
SMALL_ENCODER = EncoderConfig(16, 1, 16, 2, 16, 3, True, True, False, 4, 4, ((4, 1),))


def random_encoder(seed: int) -> EncoderConfig:
    """Every switch in both positions over four seeds; sizes at random."""
    draw = random.Random(seed)
    heads, d_head = draw.choice([1, 2, 3, 4]), draw.choice([4, 6, 8])
    return EncoderConfig(
        mel_bins=draw.choice([16, 80, 81]),
        n_layers=draw.choice([1, 2, 3]),
        d_model=heads * d_head,
        n_heads=heads,
        d_feed_forward=draw.choice([8, 40]),
        conv_kernel_size=draw.choice([2, 3, 5, 9, 12]),
        has_conv_layer_norm=seed % 2 == 0,
        use_bias=seed % 4 < 2,
        xscaling=draw.random() < 0.5,
        subsampling_factor=(4, 8)[seed // 2 % 2],
        subsampling_channels=draw.choice([4, 7]),
        contexts=((6, 0), (4, 1), (3, 2), (8, 3), (5, 4)),
    )


def random_checkpoint(
    directory: Path,
    seed: int,
    encoder: EncoderConfig = SMALL_ENCODER,
    durations: tuple[int, ...] = (),
    blank_rate: float = 0.7,
    kind: str = STANDARD,
    pair: IlmPair | None = None,
    beam_pair: IlmPair | None = None,
) -> Checkpoint:
    """A checkpoint in which about `blank_rate` of the decisions are blank.

    kind, pair: of the transducer, and of all searches in a factorized one, by default (1, 0); beam_pair: of beams.
    """
    draw = random.Random(seed)
    transducer = TransducerConfig(
        vocabulary_size=_VOCABULARY,
        predictor_hidden=draw.choice([5, 12]),
        predictor_layers=1 + seed % 2,
        joint_hidden=draw.choice([7, 16]),
        joint_activation="tanh" if kind == FACTORIZED else ("relu", "tanh", "sigmoid")[seed % 3],
        tdt_durations=durations,
        kind=kind,
        ilm_beam=beam_pair or pair,
        ilm_greedy=pair,
    )
    features = FeatureConfig(16000, 400, 160, 512, encoder.mel_bins, 0.97, 2**-24)
    config = ModelConfig(features, encoder, transducer)
    tensors = _random_tensors(config, torch.Generator().manual_seed(seed))
    _set_blank_rate(config, tensors, blank_rate)
    tokenizer = nemo_members()[tokenizer_member()]
    return write_checkpoint(
        directory / f"random-{seed}{'-factorized' * (kind == FACTORIZED)}", config, tensors, tokenizer, {}
    )


def head(kind: tuple[int, ...] | IlmPair) -> dict[str, Any]:
    """Options of `random_checkpoint`: RNN-T for (), TDT for a list of durations, a factorized one for its pair."""
    return {"kind": FACTORIZED, "pair": kind} if isinstance(kind, IlmPair) else {"durations": kind}


def with_prompts(directory: Path, checkpoint: Checkpoint, prompt: PromptConfig) -> Checkpoint:
    """The checkpoint with random layers of language prompts."""
    config = dataclasses.replace(checkpoint.config, prompt=prompt)
    tensors, generator = checkpoint.tensors(), torch.Generator().manual_seed(0)
    for name, shape in tensor_shapes(config).items():
        if name not in tensors:
            tensors[name] = _random_tensor(name, shape, generator)
    return write_checkpoint(directory, config, tensors, checkpoint.tokenizer_path.read_bytes(), {})


def with_end_tokens(bundle: Path, directory: Path, pieces: Sequence[str]) -> Checkpoint:
    """The bundle's model, in which these pieces of the tokenizer are end tokens: it writes them at known frames."""
    checkpoint = Checkpoint(bundle)
    tokenizer = Tokenizer(checkpoint.tokenizer_path)
    labels = tuple(label for label in range(tokenizer.size) if tokenizer.piece(label) in pieces)
    config = dataclasses.replace(checkpoint.config, end_tokens=labels)
    return write_checkpoint(directory, config, checkpoint.tensors(), checkpoint.tokenizer_path.read_bytes(), {})


def with_piece_texts(bundle: Path, directory: Path, texts: dict[str, str]) -> Checkpoint:
    """The bundle's model, whose tokenizer writes other texts for some pieces: same labels, same frames."""
    checkpoint = Checkpoint(bundle)
    tokenizer = with_texts(checkpoint.tokenizer_path.read_bytes(), texts)
    return write_checkpoint(directory, checkpoint.config, checkpoint.tensors(), tokenizer, {})


def random_ctc_checkpoint(
    directory: Path, seed: int, encoder: EncoderConfig = SMALL_ENCODER, blank_rate: float = 0.5
) -> Checkpoint:
    """A checkpoint with a CTC head alone, about `blank_rate` of whose frames are blank."""
    features = FeatureConfig(16000, 400, 160, 512, encoder.mel_bins, 0.97, 2**-24)
    config = ModelConfig(features, encoder, None, CtcConfig(_VOCABULARY))
    generator = torch.Generator().manual_seed(seed)
    tensors = _random_tensors(config, generator)
    logits = torch.randn(400, encoder.d_model, generator=generator) @ tensors["ctc.weight"].t() + tensors["ctc.bias"]
    tensors["ctc.bias"][-1] += (logits[:, :-1].amax(dim=1) - logits[:, -1]).quantile(blank_rate)
    tokenizer = nemo_members()[tokenizer_member()]
    return write_checkpoint(directory / f"random-ctc-{seed}", config, tensors, tokenizer, {})


def randomized(checkpoint: Checkpoint, directory: Path, seed: int, layers: int) -> Checkpoint:
    """A checkpoint of the same architecture and tokenizer with random weights and `layers` encoder layers."""
    config = dataclasses.replace(checkpoint.config, encoder=with_encoder(checkpoint.config.encoder, n_layers=layers))
    tensors = _random_tensors(config, torch.Generator().manual_seed(seed))
    for layer in range(config.transducer.predictor_layers):
        # Small enough that the LSTM forgets: rounding errors would grow with every label of a long recording.
        tensors[f"predictor.lstm.{layer}.hidden_weight"] *= 0.2
    return write_checkpoint(directory, config, tensors, checkpoint.tokenizer_path.read_bytes(), {})


def with_encoder(config: EncoderConfig, **changes: object) -> EncoderConfig:
    """`config` with some fields changed."""
    return dataclasses.replace(config, **changes)


def _random_tensors(config: ModelConfig, generator: torch.Generator) -> dict[str, torch.Tensor]:
    tensors = {n: _random_tensor(n, shape, generator) for n, shape in tensor_shapes(config).items()}
    tensors |= front_end_tensors(config.features)
    first = tensors["encoder.subsampling.first.weight"]
    first /= _MEL_DEVIATION
    tensors["encoder.subsampling.first.bias"] -= first.sum((1, 2, 3)) * _MEL_MEAN
    return tensors


def _random_tensor(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith("bias") or "position_bias" in name:
        return 0.2 * noise
    if "norm" in name.rsplit(".", 2)[-2]:
        return 1.0 + 0.2 * noise
    gain = 3.0 if name.startswith(("predictor.", "joint.output", "blank.output", "acoustic.")) else 1.4
    return gain * noise / noise[0].numel() ** 0.5


def _set_blank_rate(config: ModelConfig, tensors: dict[str, torch.Tensor], blank_rate: float) -> None:
    """Chooses the blank's bias from the joint's logits of random frames after random labels.

    A factorized transducer's blank has z more than its labels have without it: the same lead, another bias.
    """
    reference = GreedyReference(config.transducer, tensors, pair=config.transducer.ilm_greedy)
    generator = torch.Generator().manual_seed(0)
    blank = config.transducer.vocabulary_size
    state, leads = reference.start(), []
    for label in torch.randint(blank, (200,), generator=generator).tolist():
        prediction, state = reference.predict(label, state)
        logits = reference.joint(torch.randn(config.encoder.d_model, generator=generator), prediction)
        logits = reference.ranking(logits, prediction)
        leads.append(logits[:blank].max() - logits[blank])
    bias = tensors["blank.output.bias"] if config.transducer.is_factorized else tensors["joint.output.bias"][blank:]
    bias[0] += torch.stack(leads).quantile(blank_rate)


def frames_of(checkpoint: Checkpoint, seed: int, count: int) -> torch.Tensor:
    """[count, D]: encoder frames of a model with a CTC head, with labels."""
    return 2 * torch.randn(count, checkpoint.config.encoder.d_model, generator=torch.Generator().manual_seed(seed))


def silent_frame(checkpoint: Checkpoint) -> torch.Tensor:
    """[1, D]: an encoder frame whose blank is far above all labels."""
    weight = checkpoint.tensors("ctc.")["ctc.weight"]
    return 40 * (weight[-1] - weight[:-1].mean(dim=0)).reshape(1, -1) / weight[-1].norm() ** 2
