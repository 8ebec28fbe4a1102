"""The encoder's state of each stream, in slots on the device."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from penstock.model.config import AttentionContext, EncoderConfig


class ConvolutionWindows(NamedTuple):
    """Inputs of the convolutions of all layers, of B streams. D hidden, k convolution kernel, T frames per chunk."""

    all: torch.Tensor
    """[layers, B, k - 1 + T, D]: the last k - 1 inputs of each depthwise convolution, then space for this chunk's."""
    ends: torch.Tensor
    """[layers, B, T, D], the space for this chunk; a view."""


class SmallState(NamedTuple):
    """State of `slots` [n] that a step changes, but for the chunk's page, which the stream's next chunk overwrites."""

    slots: torch.Tensor
    chunks_seen: torch.Tensor
    conv_tails: torch.Tensor
    columns: tuple[torch.Tensor, ...]


class EncoderState:
    """Per-stream encoder state.

    Keys and values live in pages of one chunk each, `pages_per_slot` pages per stream: the left context and the current
    chunk. A chunk overwrites the oldest page, so a page is written once and never moves.

    kv_pages: [layers, S, 2 (key, value), heads, pages, chunk_frames * d_head]; the pages of a head are contiguous, so
    that all of them are read in one pass through memory.
    """

    def __init__(
        self, config: EncoderConfig, context: AttentionContext, slots: int, device: torch.device, dtype: torch.dtype
    ):
        self.config = config
        self.context = context
        self.slots = slots
        self.pages_per_slot = context.left // context.chunk_encoder_frames + 1
        self.chunks_seen = torch.zeros(slots, dtype=torch.int64, device=device)
        self.conv_tails = torch.zeros(
            config.n_layers, slots, config.conv_kernel_size - 1, config.d_model, device=device, dtype=dtype
        )
        self.subsampling_columns = tuple(
            torch.zeros(slots, *shape, device=device, dtype=dtype) for shape in _column_shapes(config)
        )
        self.kv_pages = torch.zeros(
            config.n_layers, slots, 2, config.n_heads, self.pages_per_slot,
            context.chunk_encoder_frames * config.d_head, device=device, dtype=dtype,
        )  # fmt: skip
        # Views of that memory by layer, [S * 2 * heads * pages, chunk_frames * d_head], and of a slot's half as a row.
        self.flat_pages = [pages.view(-1, pages.shape[-1]) for pages in self.kv_pages]
        self.flat_halves = [pages.view(slots * 2 * config.n_heads, -1) for pages in self.kv_pages]
        # The same for all layers, and the first row of each half of a slot, [S, 2 * heads].
        self._all_pages = self.kv_pages.view(config.n_layers, -1, self.kv_pages.shape[-1])
        halves = torch.arange(slots * 2 * config.n_heads, device=device).view(slots, -1)
        self.first_pages = halves * self.pages_per_slot
        self._pages = torch.arange(self.pages_per_slot, device=device)

    @property
    def bytes_per_slot(self) -> int:
        """Device memory of one stream in bytes."""
        tensors = (self.chunks_seen, self.conv_tails, self.kv_pages, *self.subsampling_columns)
        return sum(t.numel() * t.element_size() for t in tensors) // self.slots

    def columns_of(self, slots: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Copies the last input column of each strided layer of `slots` [B]: [B, F, 1], then [B, F', C]."""
        return tuple(column.index_select(0, slots) for column in self.subsampling_columns)

    def conv_windows(self, slots: torch.Tensor) -> ConvolutionWindows:
        """Copies the convolutions' last inputs of `slots` [B]."""
        layers, _, tail, width = self.conv_tails.shape
        frames = self.context.chunk_encoder_frames
        windows = self.conv_tails.new_empty(layers, len(slots), tail + frames, width)  # [layers, B, k - 1 + T, D]
        windows[:, :, :tail] = self.conv_tails.index_select(1, slots)
        return ConvolutionWindows(windows, windows[:, :, tail:])

    def keep_windows(self, slots: torch.Tensor, windows: ConvolutionWindows) -> None:
        """Writes the convolutions' last inputs of `slots` [B] back after a step."""
        self.conv_tails.index_copy_(1, slots, windows.all[:, :, self.context.chunk_encoder_frames :])

    def advance(self, slots: torch.Tensor, chunks_seen: torch.Tensor, columns: Sequence[torch.Tensor]) -> None:
        """Counts a chunk of `slots` [B] and writes the subsampling's columns; chunks_seen: [B], before it."""
        self.chunks_seen.index_copy_(0, slots, chunks_seen + 1)
        for column, new in zip(self.subsampling_columns, columns, strict=True):
            column.index_copy_(0, slots, new)

    def copy(self, slots: torch.Tensor) -> SmallState:
        """Copies what a step of `slots` [n] changes: so that a chunk can be encoded that the stream does not have."""
        seen, tails = self.chunks_seen.index_select(0, slots), self.conv_tails.index_select(1, slots)
        return SmallState(slots, seen, tails, self.columns_of(slots))

    def put_back(self, kept: SmallState) -> None:
        """Makes the streams what they were at `copy`, one step ago."""
        self.conv_tails.index_copy_(1, kept.slots, kept.conv_tails)
        self.advance(kept.slots, kept.chunks_seen - 1, kept.columns)

    def scatter_chunk(
        self,
        slots: torch.Tensor,
        pages: torch.Tensor,
        keys_values: torch.Tensor,
        conv_tails: torch.Tensor,
        columns: Sequence[torch.Tensor],
    ) -> None:
        """Writes all of a step's state for `slots` [B] but `chunks_seen`.

        pages: [B * 2 * heads] int64, the page of each half that this chunk's are, counted from the first slot's;
        keys_values: [layers, B * 2 * heads, chunk_frames * d_head]; conv_tails: [layers, B, k - 1, D]; columns: as
        `columns_of` copies them.
        """
        self._all_pages.index_copy_(1, pages, keys_values)
        self.conv_tails.index_copy_(1, slots, conv_tails)
        for column, new in zip(self.subsampling_columns, columns, strict=True):
            column.index_copy_(0, slots, new)

    def keys_values(self, layer: int) -> torch.Tensor:
        """Returns a view of a layer, [2 * S, heads, pages * chunk_frames, d_head]: each slot's keys, then values."""
        return self.kv_pages[layer].view(2 * self.slots, self.config.n_heads, -1, self.config.d_head)

    def reset(self, slots: torch.Tensor) -> None:
        """Makes `slots` [B] fresh streams. Zeroes the pages too, because a masked NaN would still make a sum NaN."""
        self.chunks_seen.index_fill_(0, slots, 0)
        self.conv_tails.index_fill_(1, slots, 0)
        for column in self.subsampling_columns:
            column.index_fill_(0, slots, 0)
        self.kv_pages.index_fill_(1, slots, 0)

    def clear(self) -> None:
        """Makes all slots fresh streams."""
        for values in (self.chunks_seen, self.conv_tails, self.kv_pages, *self.subsampling_columns):
            values.zero_()

    def halves_of(self, slots: torch.Tensor) -> torch.Tensor:
        """Returns rows of `flat_halves`, [2 * heads, B] int64: keys of each head, then values of each head."""
        halves = 2 * self.config.n_heads
        return torch.arange(halves, device=slots.device).unsqueeze(1) + slots * halves

    def page_ages(self, chunks_seen: torch.Tensor) -> torch.Tensor:
        """Returns for streams [B] how many chunks ago each page was written, [B, pages] int64; 0 for this chunk's."""
        return torch.remainder(chunks_seen.unsqueeze(1) - self._pages, self.pages_per_slot)


def _column_shapes(config: EncoderConfig) -> list[tuple[int, int]]:
    widths = (config.mel_bins, *config.subsampled_mel_bins[:-1])
    channels = (1,) + (config.subsampling_channels,) * (len(widths) - 1)
    return list(zip(widths, channels, strict=True))
