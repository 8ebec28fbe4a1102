"""The interface of stream decoders: a search with the states of its streams. Slots and encoder frames in, tokens out.

A stream belongs to one stream decoder, by its option `decoder`. Each projects the encoder frames for its own head.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch

from penstock.decoding.tensors.tensor_tree import States, StateStore, copy_to_device, map_tensors
from penstock.pipeline.options.stream_options import ResolvedOptions
from penstock.pipeline.results.decoded import Decoded


class Chunk(NamedTuple):
    """New encoder frames of B streams."""

    slots: list[int]
    encoded: torch.Tensor
    """[B, T, D] float32; T may be 0."""
    lengths: torch.Tensor
    """[B] int64, valid frames of each row."""
    is_final: list[bool]
    """True if a segment ends with this chunk."""
    prompts: torch.Tensor | None = None
    """[B] int64, the prompt of each stream's language; None for a model without language prompts."""
    copies: Collection[int] = ()
    """Rows whose streams go on without this chunk: their states do not change."""


def keep_states(chunk: Chunk, store: StateStore[States], slots: torch.Tensor, states: States) -> None:
    """Writes the states [B, ...] after a chunk back, but for copies; slots: [B] int64 on the device."""
    if chunk.copies:
        own = [row for row in range(len(chunk.slots)) if row not in chunk.copies]
        rows = copy_to_device(own, torch.int64, slots.device)
        slots, states = map_tensors(lambda t: t.index_select(0, rows), (slots, states))
    if len(slots):
        store.scatter(slots, states)


class StreamDecoder(ABC):
    """One search with the states of its streams."""

    needs_frames: bool
    """True if a chunk without frames may be skipped, also at the end of a segment."""

    @abstractmethod
    def open(self, slots: Sequence[int], options: Sequence[ResolvedOptions]) -> None:
        """Resets `slots` for new streams, or new segments after an endpoint."""

    @abstractmethod
    def begin_segment(self, slots: Sequence[int], options: Sequence[ResolvedOptions]) -> None:
        """Goes on with the best hypothesis of `slots` in a new segment; frames count from here.

        Their segments have ended with a chunk that `is_final`, or without one where the decoder `needs_frames`.
        """

    @abstractmethod
    def decode(self, chunk: Chunk) -> list[Decoded]:
        """Decodes the chunk and saves the states; returns each stream's new tokens, NOTHING without any."""
