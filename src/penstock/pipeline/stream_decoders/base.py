"""The interface of stream decoders: a search with the states of its streams. Slots and encoder frames in, tokens out.

A stream belongs to one stream decoder, by its option `decoder`. Each projects the encoder frames for its own head.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch

from penstock.pipeline.options.stream_options import StreamOptions
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


class StreamDecoder(ABC):
    """One search with the states of its streams."""

    needs_frames: bool
    """True if a chunk without frames may be skipped, also at the end of a segment."""

    @abstractmethod
    def open(self, slots: Sequence[int], options: Sequence[StreamOptions]) -> None:
        """Resets `slots` for new streams or new segments."""

    @abstractmethod
    def begin_segment(self, slots: Sequence[int], options: Sequence[StreamOptions]) -> None:
        """Goes on with the best hypothesis of `slots` in a new segment; frames count from here.

        Their segments have ended with a chunk that `is_final`, or without one where the decoder `needs_frames`.
        """

    @abstractmethod
    def decode(self, chunk: Chunk) -> list[Decoded]:
        """Decodes the chunk and saves the states; returns each stream's new tokens, NOTHING without any."""
