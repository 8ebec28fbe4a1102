"""Everything the encoder remembers of each stream, in slots on the device. Knows nothing of what the layers compute."""

from typing import NamedTuple

import torch

from penstock.config import AttentionContext, EncoderConfig


class EncoderRows(NamedTuple):
    """The small states of B streams, gathered for one step. B streams, D hidden, k conv kernel, T chunk frames."""

    chunks_seen: torch.Tensor
    """[B] int64, chunks before this one."""
    conv_windows: torch.Tensor
    """[layers, B, k - 1 + T, D]: the last inputs of each depthwise convolution, then room for this chunk's."""
    conv_window_ends: torch.Tensor
    """[layers, B, T, D], the room; a view."""
    subsampling_columns: tuple[torch.Tensor, ...]
    """Last input column of each strided layer: [B, F, 1] for the first, [B, F', C] for the others."""


class EncoderState:
    """Per-stream encoder state.

    Keys and values live in pages of one chunk each, `pages_per_slot` pages to a stream: the left context and the chunk
    at work. A chunk overwrites the oldest page, so a page is written once and never moves.

    kv_pages: [layers, S, 2 (key, value), heads, pages, chunk_frames * d_head]; a head's pages lie side by side, so that
    reading all of them is one run through memory.
    """

    def __init__(self, config: EncoderConfig, context: AttentionContext, slots: int, device, dtype):
        self.config = config
        self.context = context
        self.slots = slots
        self.pages_per_slot = context.left // context.chunk_encoder_frames + 1
        options = {"device": device, "dtype": dtype}
        self.chunks_seen = torch.zeros(slots, dtype=torch.int64, device=device)
        self.conv_tails = torch.zeros(config.n_layers, slots, config.conv_kernel_size - 1, config.d_model, **options)
        self.subsampling_columns = tuple(torch.zeros(slots, *shape, **options) for shape in _column_shapes(config))
        self.kv_pages = torch.zeros(
            config.n_layers, slots, 2, config.n_heads, self.pages_per_slot,
            context.chunk_encoder_frames * config.d_head, **options,
        )  # fmt: skip
        # The same memory as rows, layer by layer: [S * 2 * heads * pages, chunk_frames * d_head].
        self.page_rows = [pages.view(-1, pages.shape[-1]) for pages in self.kv_pages]
        self._page_ages = torch.arange(self.pages_per_slot - 1, -1, -1, device=device)  # oldest first, 0 is this chunk

    @property
    def bytes_per_slot(self) -> int:
        """Device memory of one stream."""
        tensors = (self.chunks_seen, self.conv_tails, self.kv_pages, *self.subsampling_columns)
        return sum(t.numel() * t.element_size() for t in tensors) // self.slots

    def gather(self, slots: torch.Tensor) -> EncoderRows:
        """Copies the small states of `slots` [B]; keys and values stay where they are."""
        layers, _, tail, width = self.conv_tails.shape
        room = self.context.chunk_encoder_frames
        windows = self.conv_tails.new_empty(layers, len(slots), tail + room, width)
        windows[:, :, :tail] = self.conv_tails.index_select(1, slots)
        return EncoderRows(
            self.chunks_seen.index_select(0, slots),
            windows,
            windows[:, :, tail:],
            tuple(column.index_select(0, slots) for column in self.subsampling_columns),
        )

    def scatter(self, slots: torch.Tensor, rows: EncoderRows, columns: tuple[torch.Tensor, ...]) -> None:
        """Writes the small states of `slots` [B] back after a step: windows filled, `columns` those of its end."""
        self.chunks_seen.index_copy_(0, slots, rows.chunks_seen + 1)
        self.conv_tails.index_copy_(1, slots, rows.conv_windows[:, :, self.context.chunk_encoder_frames :])
        for column, new in zip(self.subsampling_columns, columns, strict=True):
            column.index_copy_(0, slots, new)

    def reset(self, slots: torch.Tensor) -> None:
        """Makes `slots` [B] fresh streams; pages are zeroed too, for a masked NaN would still spoil a sum."""
        self.chunks_seen.index_fill_(0, slots, 0)
        self.conv_tails.index_fill_(1, slots, 0)
        for column in self.subsampling_columns:
            column.index_fill_(0, slots, 0)
        self.kv_pages.index_fill_(1, slots, 0)

    def page_table(self, slots: torch.Tensor, chunks_seen: torch.Tensor) -> torch.Tensor:
        """[2 * heads, B, pages] rows of `page_rows`: keys of each head, then values, of each stream its pages.

        A stream's oldest chunk comes first; the last is the page of the chunk at work.
        """
        page = torch.remainder(chunks_seen.unsqueeze(1) - self._page_ages, self.pages_per_slot)
        halves = 2 * self.config.n_heads
        half = torch.arange(halves, device=slots.device).unsqueeze(1) + slots * halves  # [2 * heads, B]
        return half.unsqueeze(2) * self.pages_per_slot + page

    def page_is_live(self, chunks_seen: torch.Tensor) -> torch.Tensor:
        """[B, pages] bool, in the order of `page_table`: True where the stream is old enough to have that chunk."""
        return self._page_ages <= chunks_seen.unsqueeze(1)


def _column_shapes(config: EncoderConfig) -> list[tuple[int, int]]:
    widths = (config.mel_bins, *config.subsampled_mel_bins[:-1])
    channels = (1,) + (config.subsampling_channels,) * (len(widths) - 1)
    return list(zip(widths, channels, strict=True))
