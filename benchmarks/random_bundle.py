"""A whole bundle with random weights and a tokenizer of random words, for what opens a model by its path."""

import io
from pathlib import Path

import numpy as np
import sentencepiece

from benchmarks.random_models import ENCODERS, RNNT, EncoderSizes, RandomEncoder, RandomTransducer, TransducerSizes
from penstock.model.bundle import write_checkpoint
from penstock.model.config import AttentionContext, ModelConfig
from penstock.model.source_tensors import front_end_tensors

_WORDS, _WORDS_PER_SENTENCE, _MAX_LETTERS = 16_000, 8, 8


def write_random_bundle(
    directory: Path,
    encoder: str | EncoderSizes,
    sizes: TransducerSizes,
    context: AttentionContext | None,
    kind: str = RNNT,
    mel_bins: int = 80,
    device: str = "cpu",
) -> Path:
    """Writes a Transducer of a kind of `KINDS`; returns `directory`.

    encoder: a key of `ENCODERS`, or sizes; context: None for an offline model; device: where the encoder's values are
    drawn. Raises CheckpointError for a context that no encoder can have, ValueError if the widths of encoder and joint
    differ.
    """
    encoder_sizes = ENCODERS[encoder] if isinstance(encoder, str) else encoder
    source = RandomEncoder(encoder_sizes, context, device=device, mel_bins=mel_bins)
    width, features = source.config.encoder.d_model, source.features
    if width != sizes.d_model:
        raise ValueError(f"sizes: d_model is {sizes.d_model}, the encoder has {width}")
    transducer = RandomTransducer(kind, sizes)
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
