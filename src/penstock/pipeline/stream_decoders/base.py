"""The interface of stream decoders: a search with the states of its streams. Slots and encoder frames in, tokens out.

A stream belongs to one stream decoder, by its option `decoder`. Each projects the encoder frames for its own head.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch

from penstock.decoding.tensors.tensor_tree import States, StateStore, copy_to_device, map_tensors
from penstock.pipeline.options.stream_options import ResolvedOptions
from penstock.pipeline.results.words import Decoded

_log = logging.getLogger(__name__)


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

    def restart_phrases(self, slot: int) -> None:  # noqa: B027 - a search without phrases has nothing to do
        """Goes on with the slot's new phrase list, from its start; the old one is still in memory."""

    @abstractmethod
    def decode(self, chunk: Chunk) -> list[Decoded]:
        """Decodes the chunk and saves the states; returns each stream's new tokens, NOTHING without any."""


class TruncationCounters(NamedTuple):
    """Counts of beams that exceeded their fixed memory.

    Results may depend on chunk borders if one of the first two is not 0.
    """

    forced_blanks: int = 0
    """Encoder frames that lagging hypotheses skipped with blanks."""
    pruned_hypotheses: int = 0
    """Hypotheses pruned because their labels differ from the best one's too early for the label buffer."""
    narrowed_frames: int = 0
    """Times that a search over a decoding graph followed fewer arcs than its beam holds."""
    dropped_tokens: int = 0
    """Tokens of such a search dropped because the pieces and words of their paths outgrew their memory."""


NO_TRUNCATION = TruncationCounters()


class TruncationLog:
    """Adds up the counters of one decoder's streams for metrics, and logs a line for each segment that has any."""

    def __init__(self, decoder: str, slots: int):
        self.total = NO_TRUNCATION
        """Sum over all streams since the start."""
        self._decoder = decoder
        self._of_segments = [NO_TRUNCATION] * slots

    def begin(self, slots: Sequence[int]) -> None:
        """Resets the counters of slots in which a segment begins."""
        for slot in slots:
            self._of_segments[slot] = NO_TRUNCATION

    def add(self, slot: int, counters: TruncationCounters, is_final: bool) -> None:
        """Records a segment's counters, counted from its start; with `is_final` logs them if any is not 0."""
        before = self._of_segments[slot]
        if counters != before:
            # A search counts from the segment's start, so only the difference is new.
            sums = zip(self.total, counters, before, strict=True)
            self.total = TruncationCounters(*(total + new - old for total, new, old in sums))
            self._of_segments[slot] = counters
        if is_final and any(counters):
            losses = [f"{count} {name.replace('_', ' ')}" for name, count in counters._asdict().items() if count]
            _log.warning(
                "penstock decoder: a segment's %s beam was truncated: %s; a smaller beam avoids it",
                self._decoder,
                ", ".join(losses),
            )
