"""Encoder frames of whole utterances, computed once by a frozen encoder, and batches of them."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from penstock.encoder.encoder import StreamingEncoder
from penstock.encoder.window.encoder import WindowEncoder
from penstock.errors import CheckpointError
from penstock.frontend.log_mel import LogMel
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from recipes.training.batches import normalized

_SLOTS = 32


class EncodedUtterance(NamedTuple):
    """One utterance of T encoder frames."""

    frames: torch.Tensor
    """[T, D] float32"""
    labels: list[int]
    reference: str


class EncodedBatch(NamedTuple):
    """B utterances. T and U are the largest counts."""

    encoded: torch.Tensor
    """[B, T, D] float32, zeros after an utterance's end."""
    frame_counts: torch.Tensor
    """[B] int64"""
    labels: torch.Tensor
    """[B, U] int64, zeros after an utterance's end."""
    label_counts: torch.Tensor
    """[B] int64"""
    references: list[str]


def collate(utterances: Sequence[EncodedUtterance]) -> EncodedBatch:
    """The utterances as one batch."""
    pad = torch.nn.utils.rnn.pad_sequence
    labels = [torch.tensor(utterance.labels, dtype=torch.int64) for utterance in utterances]
    return EncodedBatch(
        pad([utterance.frames for utterance in utterances], batch_first=True),
        torch.tensor([len(utterance.frames) for utterance in utterances]),
        pad(labels, batch_first=True),
        torch.tensor([len(row) for row in labels]),
        [utterance.reference for utterance in utterances],
    )


def draw_batches(
    utterances: Sequence[EncodedUtterance], size: int, random: np.random.Generator
) -> Iterator[EncodedBatch]:
    """Endless batches of `size` utterances of similar length, in epochs: an epoch has every utterance once."""
    while True:
        # Sorted within shuffled pools of 16 batches, so that batches have little padding and unlike companions.
        order = random.permutation(len(utterances))
        pools = [order[at : at + 16 * size] for at in range(0, len(order), 16 * size)]
        groups = []
        for pool in pools:
            by_length = sorted(pool, key=lambda i: len(utterances[i].frames))
            groups += [by_length[at : at + size] for at in range(0, len(by_length), size)]
        for i in random.permutation(len(groups)):
            yield collate([utterances[k] for k in groups[i]])


class FrozenEncoder:
    """A bundle's front end and encoder over whole utterances: the frames that files, or streams of one context, get."""

    def __init__(self, checkpoint: Checkpoint, context: AttentionContext | None, device: torch.device | str = "cpu"):
        """context: None for an offline model.

        CheckpointError for a model with language prompts: its heads do not read the encoder's frames as they are.
        """
        if checkpoint.config.prompt is not None:
            raise CheckpointError(f"{checkpoint.directory}: has language prompts; accepted: a model without")
        features, encoder = checkpoint.config.features, checkpoint.config.encoder
        self._config = features
        self._factor = encoder.subsampling_factor
        self._log_mel = LogMel.of(checkpoint)
        self._device = torch.device(device)
        self._encode = self._encode_windows
        if context is None:
            self._windows = WindowEncoder(checkpoint, device)
        else:
            self._encode = self._encode_chunks
            self._chunk_mel_frames = self._factor * context.chunk_encoder_frames
            self._encoder = StreamingEncoder(checkpoint, context, _SLOTS, device)

    @torch.inference_mode()
    def log_mel(self, samples: np.ndarray) -> np.ndarray:
        """Log-mel frames [N, F] float32 of an utterance's samples [n] float32."""
        config = self._config
        lead, count = config.window_samples // 2 + 1, len(samples) // config.hop_samples
        length = 1 + max(count - 1, 0) * config.hop_samples + config.window_samples
        window = np.zeros(max(lead + len(samples), length), np.float32)
        window[lead : lead + len(samples)] = samples
        filled = torch.tensor([lead + len(samples)])
        return self._log_mel(torch.from_numpy(window)[None], filled)[0, :count].numpy()

    def encode(
        self, mels: Sequence[np.ndarray], progress: Callable[[int], object] = lambda count: None
    ) -> list[torch.Tensor]:
        """Encoder frames [T, D] float32, on the CPU, of log-mel frames [N, F] each.

        progress: called with the number of utterances that are done.
        """
        order = sorted(range(len(mels)), key=lambda i: len(mels[i]))
        found: dict[int, torch.Tensor] = {}
        for at in range(0, len(order), _SLOTS):
            rows = order[at : at + _SLOTS]
            found |= zip(rows, self._encode([mels[i] for i in rows]), strict=True)
            progress(len(rows))
        return [found[i].clone() for i in range(len(mels))]  # clones: no tensors of the inference mode

    def _encode_windows(self, mels: list[np.ndarray]) -> list[torch.Tensor]:
        windows = map(normalized, mels) if self._config.is_normalized else mels
        found = self._windows.encode([torch.from_numpy(mel).to(self._device) for mel in windows])
        return [frames.float().cpu() for frames in found]

    @torch.inference_mode()
    def _encode_chunks(self, mels: list[np.ndarray]) -> list[torch.Tensor]:
        # 1) chunks, [B, C, N, F]; the first begins before the first sample, as in a stream
        virtual, chunk = self._factor - 1, self._chunk_mel_frames
        counts = [virtual + len(mel) for mel in mels]
        chunks = -(-max(counts) // chunk)
        padded = np.zeros((len(mels), chunks * chunk, mels[0].shape[1]), np.float32)
        for row, mel in zip(padded, mels, strict=True):
            row[virtual : virtual + len(mel)] = mel
        # 2) one step per chunk, of all streams that have not ended
        self._encoder.open(torch.arange(len(mels), device=self._device))
        parts: list[list[torch.Tensor]] = [[] for _ in mels]
        for step in range(chunks):
            rows = [i for i, count in enumerate(counts) if count > step * chunk]
            valid = [min(chunk, counts[i] - step * chunk) for i in rows]
            chunk_mel = torch.from_numpy(padded[rows, step * chunk : (step + 1) * chunk]).to(self._device)
            slots, counted = torch.tensor(rows, device=self._device), torch.tensor(valid, device=self._device)
            frames = self._encoder.step(slots, chunk_mel, counted).frames.float().cpu()
            for i, encoded, count in zip(rows, frames, valid, strict=True):
                parts[i].append(encoded[: -(-count // self._factor)])
        return [torch.cat(part) for part in parts]
