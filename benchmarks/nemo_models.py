"""Tiny NeMo models with random weights and natural blank rates. Needs NeMo (extra `oracle`).

Raw random weights emit max_symbols labels on every frame and so hide errors in the inner loop. Here the layers between
the stages are standardised on the signals, so that what passes through them varies in time and with the labels; the
joint's last layer is widened, so that labels vary; and the blank's bias is searched, so that most frames have no label,
some one and a few several. Every weight that starts as a constant (norms, running statistics, position biases) is
random too, and all are rounded to float16, so that they compress well and a float16 bundle is exact.
"""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from nemo.collections.asr.models import (
    ASRModel,
    EncDecCTCModel,
    EncDecCTCModelBPE,
    EncDecHybridRNNTCTCBPEModel,
    EncDecHybridRNNTCTCBPEModelWithPrompt,
    EncDecHybridRNNTCTCModel,
    EncDecRNNTBPEModel,
    EncDecRNNTBPEModelWithPrompt,
)
from nemo.utils import logging
from omegaconf import OmegaConf

from benchmarks.nemo_specs import ModelSpec
from benchmarks.random_models import ENCODER_FRAME_MS, LABELS_PER_SECOND
from benchmarks.sentencepiece_proto import with_texts

_LABELS_PER_FRAME = 0.4
_LOGIT_DEVIATION = 3.0
_LSTM_SCALE = 2.0  # enough for a state that does not settle, so that runs of labels end
_SENTENCES = (
    "the stream of water runs down the pipe to one turbine\n"
    "seven two nine erase rubout enter help start stop yes no go\n"
    "seven eight five three one six four zero repeat hello\n"
) * 20


def build_model(spec: ModelSpec, workspace: Path, signals: dict[str, np.ndarray]) -> ASRModel:
    """A model in evaluation mode; its blank rate is set on `signals` (float32 samples)."""
    logging.setLevel("ERROR")
    torch.manual_seed(spec.seed)
    data = with_texts(spec.tokenizer or _train(spec.byte_fallback, spec.tags), spec.texts)
    tokenizer = write_tokenizer(workspace / f"{spec.name}_tokenizer", data)
    if spec.second_language:
        write_tokenizer(tokenizer / "de", _train(False, (), spec.second_language))
    model = _model_class(spec)(cfg=OmegaConf.create(_configuration(spec, tokenizer))).eval()
    with torch.no_grad():
        _randomise(model)
        _standardise(model, spec, list(signals.values()))
        _set_blank_rate(model, spec, list(signals.values()))
        round_weights_to_half(model)
    return model


def _model_class(spec: ModelSpec) -> type[ASRModel]:
    if spec.characters:
        return EncDecHybridRNNTCTCModel
    if spec.languages:
        return EncDecHybridRNNTCTCBPEModelWithPrompt if spec.hybrid else EncDecRNNTBPEModelWithPrompt
    return EncDecHybridRNNTCTCBPEModel if spec.hybrid else EncDecRNNTBPEModel


def build_ctc_model(spec: ModelSpec, workspace: Path, signals: dict[str, np.ndarray]) -> ASRModel:
    """A model with the encoder of `spec` and a CTC head alone, about 0.6 of whose frames are blank."""
    logging.setLevel("ERROR")
    torch.manual_seed(spec.seed)
    tokenizer = write_tokenizer(workspace / f"{spec.name}_tokenizer", _train(spec.byte_fallback, ()))
    configuration = _configuration(spec, tokenizer)
    head = configuration.pop("aux_ctc")
    kept = ("sample_rate", *(() if spec.characters else ("tokenizer",)), "preprocessor", "encoder")
    configuration = {key: configuration[key] for key in kept} | {key: head[key] for key in ("decoder", "decoding")}
    model = (EncDecCTCModel if spec.characters else EncDecCTCModelBPE)(cfg=OmegaConf.create(configuration)).eval()
    with torch.no_grad():
        _randomise(model)
        encoded = _standardise_encoder(model, spec, list(signals.values()))
        layer = model.decoder.decoder_layers[0]
        layer.weight.normal_(0.0, _LOGIT_DEVIATION / layer.in_channels**0.5)
        logits = layer(encoded.T[None])[0]
        layer.bias[-1] += (logits[:-1].amax(0) - logits[-1]).quantile(0.6)
        round_weights_to_half(model)
    return model


def write_tokenizer(directory: Path, trained: bytes) -> Path:
    """A SentencePiece model in NeMo's layout."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.model").write_bytes(trained)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=trained)
    vocabulary = [pieces.id_to_piece(i) for i in range(pieces.get_piece_size())]
    (directory / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    return directory


def _train(byte_fallback: bool, tags: tuple[str, ...], sentences: str = _SENTENCES) -> bytes:
    """A SentencePiece model of a few hundred bytes, without normalization table."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences.splitlines()), model_writer=model, model_type="bpe",
        vocab_size=300 if byte_fallback else 48, byte_fallback=byte_fallback, normalization_rule_name="identity",
        character_coverage=1.0, bos_id=-1, eos_id=-1, minloglevel=2,
        user_defined_symbols=list(tags),
    )  # fmt: skip
    return model.getvalue()


def encode(model: ASRModel, samples: np.ndarray, context: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-mel [F, N] (valid frames) and encoder output [T, D] of a whole signal, offline."""
    with torch.no_grad():
        signal, length = torch.from_numpy(samples)[None], torch.tensor([len(samples)])
        mel, mel_length = model.preprocessor(input_signal=signal, length=length)
        model.encoder.set_default_att_context_size(list(context))
        encoded, encoded_length = model.encoder(audio_signal=mel, length=mel_length)
    return mel[0, :, : int(mel_length[0])], encoded[0, :, : int(encoded_length[0])].T


def prompted(model: ASRModel, encoded: torch.Tensor, prompt: int) -> torch.Tensor:
    """Applies the language prompt: input of the heads, [T, D], for encoder output [T, D]."""
    model._inference_prompt_index = prompt
    with torch.no_grad():
        return model._apply_prompt_to_encoded(encoded.T[None])[0].T


def mel_float64(model: ASRModel, samples: np.ndarray) -> torch.Tensor:
    """Log-mel [N, F] of a whole signal by NeMo's featurizer in float64; its constants stay what they are in float32."""
    featurizer = model.preprocessor.featurizer
    featurizer.preemph = float(np.float32(featurizer.preemph))  # the same number to float32 samples
    mel, length = featurizer(torch.from_numpy(samples).double()[None], torch.tensor([len(samples)]))
    return mel[0, :, : int(length[0])].T


@dataclass(frozen=True)
class Greedy:
    """Greedy output of one signal, alone in its batch."""

    tokens: list[int]
    timestamps: list[int]
    durations: list[int]
    score: float


def decode(model: ASRModel, encoded: torch.Tensor) -> Greedy:
    """Label-looping of NeMo over encoder output [T, D]."""
    computer = model.decoding.decoding.decoding_computer
    is_tdt = bool(model.cfg.decoding.get("durations"))
    if is_tdt:
        computer.include_duration = True
    with torch.no_grad():
        hypotheses, _ = computer(x=encoded[None], out_len=torch.tensor([len(encoded)]), prev_batched_state=None)
    count = int(hypotheses.current_lengths[0])
    durations = hypotheses.token_durations[0, :count].tolist() if is_tdt else []
    tokens, timestamps = hypotheses.transcript[0, :count].tolist(), hypotheses.timestamps[0, :count].tolist()
    return Greedy(tokens, timestamps, durations, float(hypotheses.scores[0]))


def token_log_probabilities(model: ASRModel, encoded: torch.Tensor, greedy: Greedy) -> list[float]:
    """Log-probability of each token among labels and blank, from NeMo's networks fed with NeMo's own output."""
    outputs = model.joint.num_classes_with_blank - model.joint.num_extra_outputs
    if not greedy.tokens:
        return []
    with torch.no_grad():
        targets = torch.tensor([greedy.tokens[:-1]])
        predicted, _ = model.decoder.predict(targets if targets.numel() else None, add_sos=True, batch_size=1)
        frames = model.joint.project_encoder(encoded[None])[0, greedy.timestamps]
        rows = model.joint.project_prednet(predicted)[0, : len(greedy.tokens)]
        logits = model.joint.joint_net(frames + rows)[:, :outputs]
    picked = logits.log_softmax(-1).gather(1, torch.tensor(greedy.tokens)[:, None])
    return picked[:, 0].tolist()


def _configuration(spec: ModelSpec, tokenizer: Path) -> dict:
    hidden = {"enc_hidden": spec.d_model, "pred_hidden": spec.predictor_hidden, "joint_hidden": spec.joint_hidden}
    configuration = {
        "sample_rate": 16000,
        "model_defaults": hidden,
        "tokenizer": {"dir": str(tokenizer), "type": "bpe"},
        "preprocessor": {
            "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor",
            "sample_rate": 16000, "normalize": "NA", "window_size": 0.025, "window_stride": 0.01, "window": "hann",
            "features": spec.mel_bins, "n_fft": 512, "dither": 1e-5, "pad_to": 0,
        } | spec.preprocessor,
        "encoder": _encoder_configuration(spec),
        "decoder": {
            "_target_": "nemo.collections.asr.modules.RNNTDecoder", "normalization_mode": None, "blank_as_pad": True,
            "prednet": {"pred_hidden": spec.predictor_hidden, "pred_rnn_layers": spec.predictor_layers, "dropout": 0.1},
        },
        "joint": {
            "_target_": "nemo.collections.asr.modules.RNNTJoint", "log_softmax": None,
            "jointnet": {
                "joint_hidden": spec.joint_hidden, "activation": spec.activation, "dropout": spec.joint_dropout,
            },
        },
        "decoding": {"strategy": "greedy_batch", "greedy": {"max_symbols": spec.max_symbols}},
        "loss": {"loss_name": "default"},
    }  # fmt: skip
    if spec.languages:
        hidden |= {
            "initialize_prompt_feature": True,
            "num_prompts": spec.prompts,
            "prompt_dictionary": dict(spec.languages),
        }
    if spec.hybrid:
        head = {
            "_target_": "nemo.collections.asr.modules.ConvASRDecoder",
            "feat_in": spec.d_model,
            "num_classes": -1,
            "vocabulary": [],
        }
        configuration["aux_ctc"] = {"ctc_loss_weight": 0.3, "decoder": head, "decoding": {"strategy": "greedy"}}
    if spec.characters:
        configuration["labels"] = list(spec.characters)
        configuration["aux_ctc"]["decoder"] |= {"vocabulary": list(spec.characters)}
    if spec.second_language:
        directories = {"en": str(tokenizer), "de": str(tokenizer / "de")}
        parts = {language: {"dir": directory, "type": "bpe"} for language, directory in directories.items()}
        configuration["tokenizer"] = {"type": "agg", "langs": parts}
    if spec.durations:
        durations = list(spec.durations)
        hidden |= {"tdt_durations": durations, "num_tdt_durations": len(durations)}
        configuration["joint"]["num_extra_outputs"] = len(durations)
        configuration["decoding"] |= {"model_type": "tdt", "durations": durations}
        configuration["loss"] = {"loss_name": "tdt", "tdt_kwargs": {"durations": durations}}
    return configuration


def _encoder_configuration(spec: ModelSpec) -> dict:
    return {
        "_target_": "nemo.collections.asr.modules.ConformerEncoder",
        "feat_in": spec.mel_bins, "n_layers": spec.n_layers, "d_model": spec.d_model, "n_heads": spec.n_heads,
        "subsampling": "dw_striding", "subsampling_factor": spec.factor, "causal_downsampling": True,
        "subsampling_conv_channels": spec.channels, "ff_expansion_factor": spec.ff_expansion,
        "self_attention_model": "rel_pos", "att_context_style": "chunked_limited", "att_context_size": spec.contexts,
        "xscaling": spec.xscaling, "untie_biases": spec.untie_biases, "use_bias": spec.use_bias,
        "conv_kernel_size": spec.kernel, "conv_norm_type": spec.norm, "conv_context_size": "causal",
        "dropout": 0.1, "dropout_emb": 0.0, "dropout_att": 0.1,
    } | spec.encoder  # fmt: skip


def _randomise(model: ASRModel) -> None:
    for name, parameter in model.named_parameters():
        if "pos_bias" in name or name.endswith("bias"):
            parameter.normal_(0.0, 0.2)
        elif parameter.ndim == 1:  # scales of norms
            parameter.normal_(1.0, 0.2)
        elif ".lstm." in name:
            parameter *= _LSTM_SCALE
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0.0, 0.3)
        elif name.endswith("running_var"):
            buffer.uniform_(0.3, 2.0)
    if not hasattr(model, "joint"):
        return
    output = model.joint.joint_net[-1]
    output.weight.normal_(0.0, _LOGIT_DEVIATION / output.in_features**0.5)
    output.bias.normal_(0.0, 0.5)


def _standardise(model: ASRModel, spec: ModelSpec, signals: list[np.ndarray]) -> None:
    """Rescales the layers between the stages so that their outputs have mean 0 and a set deviation on `signals`."""
    encoded = _standardise_encoder(model, spec, signals)
    if spec.languages:
        encoded = _standardise_prompts(model, spec, encoded)
    _rescale(model.joint.enc, model.joint.enc(encoded), 1.2)
    labels = torch.randint(model.decoder.blank_idx, (1, 100))
    predicted, _ = model.decoder.predict(labels, add_sos=True, batch_size=1)
    _rescale(model.joint.pred, model.joint.pred(predicted)[0], 1.2)


def _standardise_encoder(model: ASRModel, spec: ModelSpec, signals: list[np.ndarray]) -> torch.Tensor:
    """Rescales the layers before the encoder; returns its output [T, D] for all signals."""
    first, out = model.encoder.pre_encode.conv[0], model.encoder.pre_encode.out
    mel = torch.cat([encode(model, samples, spec.all_contexts[0])[0] for samples in signals], dim=1)
    first.weight /= mel.std()
    first.bias -= first.weight.sum((1, 2, 3)) * mel.mean()
    rows: list[torch.Tensor] = []
    with out.register_forward_hook(lambda layer, given, result: rows.append(result.flatten(0, -2))):
        for samples in signals:
            encode(model, samples, spec.all_contexts[0])
    _rescale(out, torch.cat(rows), 1.0)
    return torch.cat([encode(model, samples, spec.all_contexts[0])[1] for samples in signals])


def _standardise_prompts(model: ASRModel, spec: ModelSpec, encoded: torch.Tensor) -> torch.Tensor:
    """Makes the prompts matter as much as the frames; returns the heads' input [T, D] for the default language."""
    first, _, out = model.prompt_kernel
    first.weight[:, spec.d_model :].normal_(0.0, 1.0)
    _rescale(out, prompted(model, encoded, spec.default_prompt), 1.0)
    return prompted(model, encoded, spec.default_prompt)


def _rescale(layer: torch.nn.Linear, outputs: torch.Tensor, deviation: float) -> None:
    scale = deviation / outputs.std(0)
    layer.bias.copy_((layer.bias - outputs.mean(0)) * scale)
    layer.weight *= scale[:, None]


@torch.no_grad()
def let_frames_decide(model: ASRModel, spec: ModelSpec, speech: list[np.ndarray]) -> None:
    """Makes a TDT model find about as many labels as a trained one, in each system equally many.

    Random predictors are chaotic: another rounding of the frames gives other labels, and up to twice as many. Here the
    predictor hardly matters, and each label takes a frame.
    """
    model.joint.pred.weight *= 0.1
    model.joint.pred.bias *= 0.1
    model.joint.joint_net[-1].bias[model.decoder.blank_idx + 1 + spec.durations.index(0)] -= 30.0
    _set_blank_rate(model, spec, speech, LABELS_PER_SECOND * ENCODER_FRAME_MS / 1000)
    round_weights_to_half(model)


def _set_blank_rate(
    model: ASRModel, spec: ModelSpec, signals: list[np.ndarray], labels_per_frame: float = _LABELS_PER_FRAME
) -> None:
    """Bisects the blank's bias until there are about `labels_per_frame`."""
    encoded = [encode(model, samples, spec.all_contexts[0])[1] for samples in signals]
    if spec.languages:
        encoded = [prompted(model, one, spec.default_prompt) for one in encoded]
    bias, blank = model.joint.joint_net[-1].bias, model.decoder.blank_idx
    low, high = -40.0, 80.0
    for _ in range(14):
        bias[blank] = (low + high) / 2
        labels = sum(len(decode(model, one).tokens) for one in encoded)
        if labels > labels_per_frame * sum(map(len, encoded)):
            low = float(bias[blank])
        else:
            high = float(bias[blank])


@torch.no_grad()
def round_weights_to_half(model: ASRModel) -> None:
    """Gives `model` the weights of a float16 bundle of it."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        if tensor.is_floating_point() and not name.startswith("preprocessor."):
            tensor.data.copy_(tensor.data.half().float())
