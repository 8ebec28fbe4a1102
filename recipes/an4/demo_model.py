"""The demonstration models as NeMo models, with initial weights: one encoder, a CTC head, an RNN-T and a TDT head.

The encoder is cache-aware, or offline: full attention, centered convolutions, batch norm, normalized features.

Both Transducers are trained at once on one encoder, so that a step costs little more than with one of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from nemo.collections.asr.models import EncDecHybridRNNTCTCBPEModel
from omegaconf import OmegaConf

from recipes.an4.conditioning import condition, release

TDT_DURATIONS = (0, 1, 2, 3, 4)
UNLIMITED = [-1, -1]
"""The context of an offline encoder."""


@dataclass(frozen=True)
class DemoModelConfig:
    """Sizes. The defaults give about 5 million parameters."""

    layers: int = 8
    width: int = 144
    heads: int = 4
    subsampling_channels: int = 64
    hidden: int = 256
    contexts: tuple[tuple[int, int], ...] = ((70, 13), (70, 6), (70, 1), (70, 0))
    context_probabilities: tuple[float, ...] = (0.2, 0.35, 0.15, 0.3)
    dropout: float = 0.1
    predictor_dropout: float = 0.2
    is_offline: bool = False
    """Has no contexts."""


def train_tokenizer(transcripts: list[str], directory: Path, vocabulary: int) -> Path:
    """A BPE tokenizer in NeMo's layout; `vocabulary` pieces."""
    directory.mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(transcripts), model_prefix=str(directory / "tokenizer"), model_type="bpe",
        vocab_size=vocabulary, character_coverage=1.0, bos_id=-1, eos_id=-1, minloglevel=2,
        split_by_whitespace=True, hard_vocab_limit=False,
    )  # fmt: skip
    return write_tokenizer((directory / "tokenizer.model").read_bytes(), directory)


def write_tokenizer(model: bytes, directory: Path) -> Path:
    """Writes a SentencePiece model into a directory in NeMo's layout."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.model").write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(i) for i in range(1, processor.get_piece_size())]
    (directory / "vocab.txt").write_text("".join(f"{_wordpiece(piece)}\n" for piece in pieces))
    return directory


def build_model(config: DemoModelConfig, tokenizer: Path, durations: tuple[int, ...] = ()) -> torch.nn.Module:
    """A hybrid RNN-T/CTC model, or TDT/CTC where durations (encoder frames) are given."""
    return EncDecHybridRNNTCTCBPEModel(cfg=OmegaConf.create(_nemo_config(config, tokenizer, durations)))


def is_offline(model: torch.nn.Module) -> bool:
    """True if the encoder attends to everything."""
    return list(model.encoder.att_context_size) == UNLIMITED


def share_encoder(model: torch.nn.Module, other: torch.nn.Module) -> None:
    """Gives `other` the encoder and CTC head of `model`."""
    other.encoder, other.ctc_decoder = model.encoder, model.ctc_decoder


def standardize_subsampling(model: torch.nn.Module, mels: list[np.ndarray]) -> None:
    """Scales the subsampling's layers, first to last, until every channel has mean 0 and deviation 1 on these features.

    After "layer-sequential unit variance" (Mishkin and Matas, arXiv 1511.06422). A raw log-mel mean of -12 and four
    convolutions whose biases outweigh their inputs give the layers above nearly the same input for any speech: no
    alignment is found in 2,000 steps. The last layer is scaled too, although the encoder multiplies its output by the
    root of the width (12): weights scaled down for that would be so small that a step of Adam changed each by a third.

    mels: log-mel frames [N, F] each, without padding; the first 200 of at least 100 frames are used.
    """
    encoder = model.encoder
    pieces = [mel[:100] for mel in mels if len(mel) >= 100][:200]
    if not pieces:
        raise ValueError("no utterance of at least 1 s (100 frames) to scale the subsampling by")
    features = torch.from_numpy(np.stack(pieces)).float()  # [B, N, F]
    counts = torch.full((len(features),), features.shape[1])
    convolutions = [m for m in encoder.pre_encode.conv.modules() if isinstance(m, torch.nn.Conv2d)]
    for layer in (*convolutions, encoder.pre_encode.out):
        _standardize(layer, lambda: encoder.pre_encode(x=features, lengths=counts))


def condition_input(model: torch.nn.Module, mels: list[np.ndarray]) -> None:
    """Trains the first convolution as if its input were centered; call `release_input` before saving the model."""
    values = np.concatenate(mels)
    condition(_first_convolution(model), float(values.mean()), float(values.std()))


def release_input(model: torch.nn.Module) -> None:
    """Restores the first convolution's plain weights, as NeMo stores them."""
    release(_first_convolution(model))


def _first_convolution(model: torch.nn.Module) -> torch.nn.Conv2d:
    return next(m for m in model.encoder.pre_encode.conv.modules() if isinstance(m, torch.nn.Conv2d))


@torch.no_grad()
def _standardize(layer: torch.nn.Module, forward: Callable[[], object]) -> None:
    """Scales weights and bias by the statistics of the layer's output."""
    outputs = []
    hook = layer.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    forward()
    hook.remove()
    (output,) = outputs
    channel = 1 if isinstance(layer, torch.nn.Conv2d) else output.ndim - 1
    values = output.transpose(0, channel).flatten(1)  # [channels, values]
    scale = 1.0 / values.std(dim=1).clamp(min=1e-4)
    layer.weight.mul_(scale.view(-1, *[1] * (layer.weight.ndim - 1)))
    layer.bias.sub_(values.mean(dim=1)).mul_(scale)


@torch.no_grad()
def set_label_priors(model: torch.nn.Module, transcripts: list[str], blank: float = 0.8) -> None:
    """Sets the biases of CTC head and joint to label frequencies and scales their weights down.

    Otherwise the first hundred steps learn only these frequencies, with gradients that make the encoder's output the
    same for any input. blank: its share of the frames.
    """
    labels = [label for text in transcripts for label in model.tokenizer.text_to_ids(text)]
    vocabulary = model.ctc_decoder.num_classes_with_blank - 1
    counts = torch.bincount(torch.tensor(labels), minlength=vocabulary).float() + 1
    bias = torch.cat([(1 - blank) * counts / counts.sum(), torch.tensor([blank])]).log()
    for layer in (model.ctc_decoder.decoder_layers[0], model.joint.joint_net[-1]):
        layer.weight.mul_(0.1)
        layer.bias.zero_()[: vocabulary + 1] = bias


def _wordpiece(piece: str) -> str:
    return piece[1:] if piece.startswith("▁") else f"##{piece}"


def _nemo_config(config: DemoModelConfig, tokenizer: Path, durations: tuple[int, ...]) -> dict:
    """The whole model; a TDT model where durations are given.

    NeMo requires `spec_augment`, and has losses for training on in NeMo. The training here uses `recipes.training`.
    """
    hidden = {"enc_hidden": config.width, "pred_hidden": config.hidden, "joint_hidden": config.hidden}
    decoding = {"strategy": "greedy_batch", "greedy": {"max_symbols": 10}}
    extra_outputs = {}
    if durations:
        hidden |= {"tdt_durations": list(durations), "num_tdt_durations": len(durations)}
        decoding |= {"model_type": "tdt", "durations": list(durations)}
        extra_outputs = {"num_extra_outputs": len(durations)}
    return {
        "sample_rate": 16000, "compute_eval_loss": False, "log_prediction": False, "rnnt_reduction": "mean_batch",
        "skip_nan_grad": False, "model_defaults": hidden, "tokenizer": {"dir": str(tokenizer), "type": "bpe"},
        "preprocessor": {
            "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor", "sample_rate": 16000,
            "normalize": "per_feature" if config.is_offline else "NA", "window_size": 0.025, "window_stride": 0.01,
            "window": "hann", "features": 80, "n_fft": 512, "frame_splicing": 1, "dither": 1e-5, "pad_to": 0,
        },
        "spec_augment": {
            "_target_": "nemo.collections.asr.modules.SpectrogramAugmentation", "freq_masks": 2, "time_masks": 4,
            "freq_width": 16, "time_width": 0.05,
        },
        "encoder": _encoder_config(config),
        "decoder": {
            "_target_": "nemo.collections.asr.modules.RNNTDecoder", "normalization_mode": None,
            "random_state_sampling": False, "blank_as_pad": True,
            "prednet": {
                "pred_hidden": config.hidden, "pred_rnn_layers": 1, "t_max": None, "dropout": config.predictor_dropout,
            },
        },
        "joint": {
            "_target_": "nemo.collections.asr.modules.RNNTJoint", "log_softmax": None, "preserve_memory": False,
            "fuse_loss_wer": False, "fused_batch_size": -1,
            "jointnet": {"joint_hidden": config.hidden, "activation": "relu", "dropout": 0.0}, **extra_outputs,
        },
        "aux_ctc": {
            "ctc_loss_weight": 0.3, "use_cer": False, "ctc_reduction": "mean_batch",
            "decoder": {
                "_target_": "nemo.collections.asr.modules.ConvASRDecoder", "feat_in": config.width, "num_classes": -1,
                "vocabulary": [],
            },
            "decoding": {"strategy": "greedy"},
        },
        "decoding": decoding,
        "loss": {
            "loss_name": "tdt" if durations else "default",
            "tdt_kwargs": {"durations": list(durations), "sigma": 0.0, "omega": 0.0},
            "warprnnt_numba_kwargs": {"fastemit_lambda": 0.0, "clamp": -1.0},
        },
        "optim": {"name": "adamw", "lr": 1e-3},
    }  # fmt: skip


def _encoder_config(config: DemoModelConfig) -> dict:
    if config.is_offline:
        attention = {
            "causal_downsampling": False, "att_context_size": UNLIMITED, "att_context_style": "regular",
            "conv_norm_type": "batch_norm", "conv_context_size": None,
        }  # fmt: skip
    else:
        attention = {
            "causal_downsampling": True, "att_context_size": [list(context) for context in config.contexts],
            "att_context_probs": list(config.context_probabilities), "att_context_style": "chunked_limited",
            "conv_norm_type": "layer_norm", "conv_context_size": "causal",
        }  # fmt: skip
    return {
        "_target_": "nemo.collections.asr.modules.ConformerEncoder", "feat_in": 80, "feat_out": -1,
        "n_layers": config.layers, "d_model": config.width, "use_bias": True, "subsampling": "dw_striding",
        "subsampling_factor": 8, "subsampling_conv_channels": config.subsampling_channels,
        "ff_expansion_factor": 4, "self_attention_model": "rel_pos", "n_heads": config.heads, "xscaling": True,
        "untie_biases": True, "pos_emb_max_len": 5000, "conv_kernel_size": 9, "dropout": config.dropout,
        "dropout_pre_encoder": config.dropout, "dropout_emb": 0.0, "dropout_att": config.dropout,
        "stochastic_depth_drop_prob": 0.0, **attention,
    }  # fmt: skip
