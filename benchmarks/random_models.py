"""Models with random weights, for benchmarks without a trained model: encoder, Transducer network, tokenizer, bundle.

Each stands in for the part of a `Checkpoint` that its user reads. The Transducer emits about as many labels as a
trained model.
"""

import io
import zlib
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import sentencepiece
import torch

from penstock.decoding.greedy.memory import fresh_states
from penstock.decoding.greedy.search import LabelLooping
from penstock.decoding.transducer.interface import TransducerNetwork
from penstock.decoding.transducer.networks import open_network
from penstock.model.bundle import tensor_shapes, write_checkpoint
from penstock.model.config import (
    FACTORIZED,
    STANDARD,
    AttentionContext,
    CtcConfig,
    EncoderConfig,
    FeatureConfig,
    ModelConfig,
    TransducerConfig,
)
from penstock.model.source_tensors import front_end_tensors

RNNT, TDT = "rnnt", "tdt"
KINDS = (RNNT, TDT)
LABELS_PER_SECOND = 3.5
"""About what a tokenizer of 1,000 pieces makes of speech."""
ENCODER_FRAME_MS = 80.0
EVERYTHING = [-1, -1]
"""The attention context of an offline model, in NeMo."""
OFFLINE = {
    "att_context_style": "regular",
    "att_context_size": EVERYTHING,
    "causal_downsampling": False,
    "conv_context_size": None,
}
"""Differences of an offline model's section `encoder` in NeMo."""
_MEL_BINS, _KERNEL, _FACTOR = 80, 9, 8
_FEED_FORWARD_FACTOR = 4
FEATURES = FeatureConfig(16000, 400, 160, 512, _MEL_BINS, 0.97, 2**-24)
_UNUSED_TRANSDUCER = TransducerConfig(1, 1, 1, 1, "relu", ())
_TDT_DURATIONS = (0, 1, 2, 3, 4)
_PROJECTION_DEVIATION, _LOGIT_DEVIATION = 1.2, 3.0
_SAMPLES = 200
_CALIBRATION_STREAMS, _CALIBRATION_ENCODER_FRAMES = 16, 60
_MIN_BLANK_RATE, _BISECTIONS = 0.3, 6
_PIECE_LETTERS = 3
"""Letters per piece, all alike, so that a word is cut into pieces in one way only."""
_WORDS, _WORDS_PER_SENTENCE, _MAX_LETTERS = 16_000, 8, 8


class EncoderSizes(NamedTuple):
    """A FastConformer with convolution kernel 9, feed-forward factor 4 and subsampling factor 8."""

    layers: int
    width: int
    heads: int
    subsampling_channels: int


ENCODERS = {
    "small": EncoderSizes(8, 144, 4, 64),
    "large": EncoderSizes(17, 512, 8, 256),
    "xlarge": EncoderSizes(24, 1024, 8, 256),
    "xxlarge": EncoderSizes(42, 1024, 8, 256),
}
"""The bundled models' size, and NeMo's FastConformer configurations of these names."""


class TransducerSizes(NamedTuple):
    """Widths of predictor and joint."""

    d_model: int
    hidden: int
    vocabulary_size: int


TRANSDUCERS = {
    "small": TransducerSizes(144, 256, 128),
    "large": TransducerSizes(512, 640, 1024),
    "multilingual": TransducerSizes(1024, 640, 13_087),
}
"""The bundled models' width, NeMo's large models, and the vocabulary of `nemotron-3.5-asr-streaming-0.6b`."""


class _RandomHead:
    """Named tensors of a head for frames of width `d_model`, and a generator that has drawn them."""

    def __init__(self, d_model: int, seed: int):
        self._d_model, self._generator = d_model, torch.Generator().manual_seed(seed)
        self._tensors: dict[str, torch.Tensor] = {}

    def tensors(self, *prefixes: str) -> dict[str, torch.Tensor]:
        """`Checkpoint.tensors`."""
        return {name: tensor for name, tensor in self._tensors.items() if not prefixes or name.startswith(prefixes)}

    def frames(self, batch: int, encoder_frames: int) -> torch.Tensor:
        """Random encoder output [B, T, D] float32; every call draws new values."""
        return torch.randn(batch, encoder_frames, self._d_model, generator=self._generator)


class RandomCtc(_RandomHead):
    """The part of a `Checkpoint` that a `CtcHead` reads."""

    def __init__(self, sizes: TransducerSizes):
        """sizes: width of the frames and labels; about one frame in four has a label."""
        super().__init__(sizes.d_model, seed=0)
        self.config = SimpleNamespace(ctc=CtcConfig(sizes.vocabulary_size), transducer=None, prompt=None)
        weight = torch.randn(sizes.vocabulary_size + 1, sizes.d_model, generator=self._generator)
        logits = self.frames(1, _SAMPLES)[0] @ weight.t()
        bias = torch.zeros(sizes.vocabulary_size + 1)
        bias[-1] = (logits[:, :-1].amax(dim=1) - logits[:, -1]).quantile(
            1 - LABELS_PER_SECOND * ENCODER_FRAME_MS / 1000
        )
        self._tensors = {"ctc.weight": weight, "ctc.bias": bias}


class RandomEncoder:
    """The part of a `Checkpoint` that a `StreamingEncoder` reads."""

    def __init__(self, sizes: EncoderSizes, context: AttentionContext | None, device: str | torch.device):
        """context: None for an offline model; device: where values are drawn.

        Raises CheckpointError for a context that no encoder can have.
        """
        self.features = replace(FEATURES, is_normalized=context is None)
        self.config = SimpleNamespace(
            encoder=EncoderConfig(
                mel_bins=_MEL_BINS,
                n_layers=sizes.layers,
                d_model=sizes.width,
                n_heads=sizes.heads,
                d_feed_forward=_FEED_FORWARD_FACTOR * sizes.width,
                conv_kernel_size=_KERNEL,
                has_conv_layer_norm=False,
                use_bias=True,
                xscaling=False,
                subsampling_factor=_FACTOR,
                subsampling_channels=sizes.subsampling_channels,
                contexts=() if context is None else (context,),
            )
        )
        self._device = torch.device(device)
        self._generator = torch.Generator(self._device).manual_seed(0)

    def tensors(self, prefix: str) -> dict[str, torch.Tensor]:
        """`Checkpoint.tensors`; a tensor has the same values in every call."""
        shapes = tensor_shapes(ModelConfig(self.features, self.config.encoder, _UNUSED_TRANSDUCER))
        return {name: self._draw(name, shape) for name, shape in shapes.items() if name.startswith(prefix)}

    def mel(self, chunks: int, batch: int, mel_frames: int) -> torch.Tensor:
        """Random log-mel [C, B, N, F] float32; every call draws new values."""
        return torch.randn(
            chunks, batch, mel_frames, self.features.mel_bins, generator=self._generator, device=self._device
        )

    def _draw(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Scales keep activations near 1 in every layer."""
        if name.endswith("bias"):
            return torch.zeros(shape, device=self._device)
        if "norm" in name:
            return torch.ones(shape, device=self._device)
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
        noise = torch.randn(shape, generator=generator, device=self._device)
        return noise / noise[0].numel() ** 0.5


class RandomTransducer(_RandomHead):
    """The part of a `Checkpoint` that a `TransducerNetwork` reads."""

    def __init__(self, kind: str, sizes: TransducerSizes, seed: int = 0):
        """kind: of `KINDS`, or `FACTORIZED`; `TDT` has durations 0 .. 4."""
        super().__init__(sizes.d_model, seed)
        self.config = SimpleNamespace(
            ctc=None,
            prompt=None,
            transducer=TransducerConfig(
                vocabulary_size=sizes.vocabulary_size,
                predictor_hidden=sizes.hidden,
                predictor_layers=1,
                joint_hidden=sizes.hidden,
                joint_activation="tanh" if kind == FACTORIZED else "relu",
                tdt_durations=_TDT_DURATIONS if kind == TDT else (),
                kind=FACTORIZED if kind == FACTORIZED else STANDARD,
            ),
        )
        self._tensors = self._draw(sizes)
        self._calibrate_blank_bias()

    @property
    def _is_factorized(self) -> bool:
        return self.config.transducer.is_factorized

    def _draw(self, sizes: TransducerSizes) -> dict[str, torch.Tensor]:
        config, hidden = self.config.transducer, sizes.hidden

        def noise(rows: int, columns: int, deviation: float) -> torch.Tensor:
            return deviation * torch.randn(rows, columns, generator=self._generator) / columns**0.5

        predictor = {
            "predictor.embedding.weight": noise(config.vocabulary_size + 1, hidden, hidden**0.5),
            "predictor.lstm.0.input_weight": noise(4 * hidden, hidden, 2.0),
            "predictor.lstm.0.hidden_weight": noise(4 * hidden, hidden, 2.0),
            "predictor.lstm.0.input_bias": torch.zeros(4 * hidden),
            "predictor.lstm.0.hidden_bias": torch.zeros(4 * hidden),
        }
        if self._is_factorized:
            return predictor | {
                "predictor.output.weight": noise(config.vocabulary_size, hidden, _LOGIT_DEVIATION),
                "predictor.output.bias": torch.zeros(config.vocabulary_size),
                "blank.embedding.weight": noise(config.vocabulary_size + 1, hidden, _PROJECTION_DEVIATION),
                "blank.encoder.weight": noise(hidden, sizes.d_model, _PROJECTION_DEVIATION),
                "blank.encoder.bias": torch.zeros(hidden),
                "blank.output.weight": noise(1, hidden, _LOGIT_DEVIATION),
                "blank.output.bias": torch.zeros(1),
                "acoustic.weight": noise(config.vocabulary_size, sizes.d_model, _LOGIT_DEVIATION),
                "acoustic.bias": torch.zeros(config.vocabulary_size),
            }
        return predictor | {
            "joint.encoder.weight": noise(hidden, sizes.d_model, _PROJECTION_DEVIATION),
            "joint.encoder.bias": torch.zeros(hidden),
            "joint.predictor.weight": noise(hidden, hidden, _PROJECTION_DEVIATION),
            "joint.predictor.bias": torch.zeros(hidden),
            "joint.output.weight": noise(config.joint_outputs, hidden, _LOGIT_DEVIATION),
            "joint.output.bias": torch.zeros(config.joint_outputs),
        }

    @torch.inference_mode()
    def _calibrate_blank_bias(self) -> None:
        """Scales the predictor's projection, then bisects the blank's bias down to `LABELS_PER_SECOND`."""
        blank = self.config.transducer.vocabulary_size
        labels = torch.randint(blank, (4, _SAMPLES), generator=self._generator)
        if not self._is_factorized:
            projected = _predict(open_network(self), labels)
            self._tensors["joint.predictor.weight"] *= _PROJECTION_DEVIATION / projected.std()
        network = open_network(self)
        scores = network.score(network.project_encoder(self.frames(1, _SAMPLES))[0], _predict(network, labels))
        leads = scores.labels.amax(dim=1) - scores.blank
        low, high = float(leads.quantile(_MIN_BLANK_RATE)), float(leads.max())
        frames = self.frames(_CALIBRATION_STREAMS, _CALIBRATION_ENCODER_FRAMES)
        bias = self._tensors["blank.output.bias"] if self._is_factorized else self._tensors["joint.output.bias"][blank:]
        for _ in range(_BISECTIONS):
            bias[0] = (low + high) / 2
            if self._labels_per_second(frames) > LABELS_PER_SECOND:
                low = float(bias[0])
            else:
                high = float(bias[0])

    def _labels_per_second(self, frames: torch.Tensor) -> float:
        network, (batch, encoder_frames, _) = open_network(self), frames.shape
        lengths = torch.full((batch,), encoder_frames)
        hyps, _ = LabelLooping(network).decode(network.project_encoder(frames), lengths, fresh_states(network, batch))
        return float(hyps.lengths.sum()) / (batch * encoder_frames) * 1000.0 / ENCODER_FRAME_MS


def _predict(network: TransducerNetwork, labels: torch.Tensor) -> torch.Tensor:
    """The prediction [N, J] after labels [U, N]."""
    prediction = network.start(labels.shape[1])
    for step in labels:
        prediction = network.predict(step, prediction.state)
    return prediction.projected


class SyntheticTokenizer:
    """The interface of `Tokenizer` for any number of three-letter pieces up to 35,152.

    Piece 0 is the unknown one. The others begin a word where their number is odd; n and n + 1 (n even) have the same
    letters.
    """

    separator = None

    def __init__(self, size: int):
        self.size, self.unknown = size, 0
        letters = ("".join(letters) for letters in product(ascii_lowercase, repeat=_PIECE_LETTERS))
        self._pieces = ["??"]
        for number, code in enumerate(islice(letters, size // 2 + 1)):
            self._pieces += [code, " " + code] if number else [" " + code]
        del self._pieces[size:]
        self._numbers = {piece: number for number, piece in enumerate(self._pieces)}

    def piece(self, token: int) -> str:
        """The text of token id 0 .. size - 1."""
        return self._pieces[token]

    def encode(self, text: str) -> list[int]:
        """The tokens of `text`; `unknown` stands for what cannot be written."""
        tokens = []
        for word in text.split():
            codes = [word[start : start + _PIECE_LETTERS] for start in range(0, len(word), _PIECE_LETTERS)]
            codes[0] = " " + codes[0]
            tokens += [self._numbers.get(code, self.unknown) for code in codes]
        return tokens

    def encodings(self, text: str) -> list[tuple[int, ...]]:
        """The tokens as the only entry, none where `unknown` is among them."""
        tokens = self.encode(text)
        return [tuple(tokens)] if tokens and self.unknown not in tokens else []

    def decode(self, tokens: list[int]) -> str:
        """The text of a whole sequence."""
        return "".join(self._pieces[token] for token in tokens).lstrip(" ")


def write_random_bundle(
    directory: Path, encoder: str, sizes: TransducerSizes, context: AttentionContext, device: str
) -> Path:
    """Writes an RNN-T; returns `directory`.

    encoder: a key of `ENCODERS`; device: where the encoder's values are drawn. Raises CheckpointError for a context
    that no encoder can have, ValueError if the widths of encoder and joint differ.
    """
    source = RandomEncoder(ENCODERS[encoder], context, device)
    width, features = source.config.encoder.d_model, source.features
    if width != sizes.d_model:
        raise ValueError(f"sizes: d_model is {sizes.d_model}, the encoder has {width}")
    transducer = RandomTransducer(RNNT, sizes)
    config = ModelConfig(features, source.config.encoder, transducer.config.transducer)
    tensors = {name: tensor.cpu() for name, tensor in source.tensors("encoder.").items()} | transducer.tensors()
    tensors |= front_end_tensors(features)
    return write_checkpoint(directory, config, tensors, random_tokenizer(sizes.vocabulary_size), {}).directory


def random_tokenizer(pieces: int) -> bytes:
    """A SentencePiece model with exactly `pieces` pieces."""
    random = np.random.default_rng(0)
    letters = random.integers(ord("a"), ord("z") + 1, (_WORDS, _MAX_LETTERS))
    lengths = random.integers(2, _MAX_LETTERS + 1, _WORDS)
    words = ["".join(map(chr, row[:length])) for row, length in zip(letters, lengths, strict=True)]
    sentences = [" ".join(words[at : at + _WORDS_PER_SENTENCE]) for at in range(0, _WORDS, _WORDS_PER_SENTENCE)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, model_type="bpe", vocab_size=pieces, bos_id=-1,
        eos_id=-1, minloglevel=2,
    )  # fmt: skip
    return model.getvalue()
