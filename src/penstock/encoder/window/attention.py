"""Attention over the strip of a batch's windows, whole or in a band around each query, in blocks of queries.

A strip has the frames of all windows of a batch, one row after another, and their places between gaps of zeros. The
scores are those of `penstock.encoder.attention`. A block of Q queries and K keys has Q + K - 1 distances, so it scores
as many positions and reads each query's from a view of the result.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple

import torch

from penstock.encoder.attention import AttentionWeights, distance_sinusoids, project_positions
from penstock.encoder.modules import Tensors, linear, subset
from penstock.errors import SettingError, shown
from penstock.linear import Linear
from penstock.model.config import EncoderConfig
from penstock.model.limits import MAX_CONTEXT

LEAST_FILLED = 0.5
"""A group has no row shorter than this share of its longest: attention is a small part of the work."""
BLOCK_QUERIES, BLOCK_PRODUCTS, BLOCK_DISTANCES = 256, 1 << 29, 2048
"""Limits of one step: queries, products of queries and keys in all heads, positions to project."""
GROUP_PRODUCTS, GROUP_QUERY_NUMBERS = 1 << 32, 1 << 23
"""Limits of one step where rows are grouped: products as above, numbers of the queries of a group. Without a band all
queries that the products allow."""
CACHED_SCORES, LEAST_QUERIES = 1 << 19, 64
"""Scores that are computed at once on a CPU, 2 MB; queries that a product needs to be fast."""
KEPT_FRAMES = 384
"""Distances up to this are projected once for each layer, 31 s at 8x; longer ones for each batch."""


class RowGroup(NamedTuple):
    """R rows of a strip as a batch, each padded to L frames."""

    lengths: list[int]
    """Frames of each row, the longest first."""
    frames: torch.Tensor
    """[N] int64, the places of all frames of the rows in the strip."""
    padded: torch.Tensor
    """[R * L] int64, the place that each frame of the batch is read from; after a row's end any."""
    own: torch.Tensor
    """[N] int64, the places of `frames` in `padded`."""
    is_padding: torch.Tensor | None
    """[R, L], True after a row's end; None if all rows have L frames."""


class Strip:
    """The places of R rows in a strip [M, D] without padding, M the sum of their lengths.

    A convolution over time takes the frames with `gap` zeros before the first row and after every row, as
    [G + M, D]: so it runs once over all rows, and none reaches into another.
    """

    def __init__(self, lengths: Sequence[int], gap: int, device: torch.device):
        """lengths: encoder frames of each row, 0 or more; gap: frames that a convolution reads on either side."""
        self.lengths, self.gap, self._device = list(lengths), gap, device
        self.frames = sum(self.lengths)
        """M"""
        self.padded_frames = self.frames + gap * (len(self.lengths) + 1)
        """G + M"""
        rows = torch.repeat_interleave(torch.arange(len(self.lengths)), torch.tensor(self.lengths, dtype=torch.int64))
        places = torch.arange(self.frames) + gap * (rows + 1)
        self._host_places: list[int] = places.tolist()
        self.places = places.to(device)
        """[M] int64, the place of each frame among the zeros."""
        is_zero = torch.ones(self.padded_frames, dtype=torch.bool).index_fill_(0, places, False)
        self.zeros = is_zero.nonzero().flatten().to(device)
        """[G] int64, the places of the zeros."""

    def rows(self) -> Iterator[slice]:
        """The frames of each row."""
        begin = 0
        for length in self.lengths:
            yield slice(begin, begin + length)
            begin += length

    def groups(self, numbers: Sequence[int], most_rows: Callable[[int], int]) -> Iterator[slice | RowGroup]:
        """Groups the rows of these numbers by length, without empty ones; the frames of one that stays alone.

        most_rows: of a group whose longest row has this many frames.
        """
        rows = list(self.rows())
        left = sorted((number for number in numbers if self.lengths[number]), key=lambda n: -self.lengths[n])
        while left:
            longest = self.lengths[left[0]]
            most = max(most_rows(longest), 1)
            chosen = [number for number in left[:most] if self.lengths[number] >= LEAST_FILLED * longest]
            yield self._group([rows[number] for number in chosen], longest) if len(chosen) > 1 else rows[left[0]]
            left = left[len(chosen) :]

    def _group(self, rows: Sequence[slice], longest: int) -> RowGroup:
        begins, lengths = torch.tensor([(row.start, row.stop - row.start) for row in rows]).T
        steps = torch.arange(longest)
        is_own = steps < lengths[:, None]
        places = begins[:, None] + torch.where(is_own, steps, 0)
        own = is_own.flatten().nonzero().flatten()
        has_padding = bool((lengths < longest).any())
        return RowGroup(
            lengths.tolist(), places.flatten()[own].to(self._device), places.flatten().to(self._device),
            own.to(self._device), (~is_own).to(self._device) if has_padding else None,
        )  # fmt: skip

    def blocks(self, size: int) -> Iterator[slice]:
        """All frames, `size` at a time, whichever row they belong to."""
        for begin in range(0, self.frames, size):
            yield slice(begin, min(begin + size, self.frames))

    def reach(self, block: slice) -> slice:
        """Places among the zeros that the convolution of a block reads."""
        return slice(self._host_places[block.start] - self.gap, self._host_places[block.stop - 1] + self.gap + 1)

    def split(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The rows [T, D] of x [M, D]."""
        return list(x.split(self.lengths))


class Band(NamedTuple):
    """The keys that each query sees: `left` encoder frames before it to `right` after it."""

    left: int
    right: int

    def __str__(self) -> str:
        return f"local={self.left},{self.right}"


class Chunks(NamedTuple):
    """The keys that each query of a chunk sees: `left` encoder frames before the chunk to `right` after it.

    The first chunk begins with the window.
    """

    left: int
    size: int
    right: int

    @property
    def reach(self) -> Band:
        """The keys that any query may see."""
        return Band(self.size - 1 + self.left, self.size - 1 + self.right)

    def hidden(self, queries: range, keys: range, device: torch.device) -> torch.Tensor:
        """The keys that each query does not see, bool [Q, K]."""
        chunk = torch.arange(queries.start, queries.stop, device=device)[:, None] // self.size * self.size
        key = torch.arange(keys.start, keys.stop, device=device)
        return (key < chunk - self.left) | (key >= chunk + self.size + self.right)


Reach = Band | Chunks
"""Limit of attention; None where each frame attends to the whole window."""


def parse_attention(text: str) -> Band | None:
    """Parses "full", which is None, or "local=128,128"; SettingError names what is accepted."""
    if text == "full":
        return None
    kind, _, sides = text.partition("=")
    numbers = [int(side) for side in sides.split(",") if side.isascii() and side.isdigit() and len(side) < 6]
    if kind != "local" or len(numbers) != 2 or sides.count(",") != 1 or max(numbers) > MAX_CONTEXT:
        raise SettingError(
            f"attention {shown(text)}: accepted: full, or local=LEFT,RIGHT in encoder frames from 0 to {MAX_CONTEXT}, "
            "as local=128,128"
        )
    return Band(*numbers)


class RowsOfReach(NamedTuple):
    """A row, or several at once, with the same limits."""

    rows: slice | RowGroup
    reach: Reach | None

    @property
    def scored_frames(self) -> int:
        """One more than the largest distance that a block scores."""
        longest = self.rows.stop - self.rows.start if isinstance(self.rows, slice) else self.rows.lengths[0]
        band = _band(self.reach)
        return longest if band is None else min(longest, max(band) + BLOCK_QUERIES)


def rows_of_reaches(strip: Strip, reaches: Sequence[Reach | None], width: int, is_grouped: bool) -> list[RowsOfReach]:
    """All rows of a strip as attention takes them, for all layers; reaches: of each row, width: of the model."""
    if not is_grouped:
        return list(map(RowsOfReach, strip.rows(), reaches))
    rows = []
    for reach in dict.fromkeys(reaches):
        numbers = [number for number, each in enumerate(reaches) if each == reach]

        def most_rows(frames: int, reach: Reach | None = reach) -> int:
            products = frames * _keys_seen(frames, reach) * width
            return min(GROUP_PRODUCTS // products, GROUP_QUERY_NUMBERS // (frames * width))

        rows += [RowsOfReach(group, reach) for group in strip.groups(numbers, most_rows)]
    return rows


def _band(reach: Reach | None) -> Band | None:
    return reach.reach if isinstance(reach, Chunks) else reach


def _keys_seen(frames: int, reach: Reach | None) -> int:
    """By one query of a row, at most."""
    band = _band(reach)
    return max(frames if band is None else min(frames, sum(band) + 1), 1)


class Positions(NamedTuple):
    """Projected relative positions of one layer. H heads, P distances: farthest, farthest - 1 .. -farthest."""

    projected: torch.Tensor
    """[H, dh, P]"""
    bias: torch.Tensor
    """[H, 1, P], as in `AttentionWeights`; very negative where a band hides the distance."""
    farthest: int

    def within(self, band: Reach | None) -> "Positions":
        """Hides the distances outside of a band; of chunks `mix` hides keys."""
        if not isinstance(band, Band):
            return self
        distance = torch.arange(self.farthest, -self.farthest - 1, -1, device=self.bias.device)
        is_hidden = (distance > band.left) | (distance < -band.right)
        return self._replace(bias=self.bias.masked_fill(is_hidden, torch.finfo(self.bias.dtype).min / 4))


class WindowAttention:
    """The attention of one layer."""

    def __init__(self, config: EncoderConfig, tensors: Tensors, dtype: torch.dtype, is_grouped: bool):
        """tensors: the layer's, as they are folded; dtype: of the computation; is_grouped: as in `WindowEncoder`."""
        self._config, self._dtype, self._is_grouped = config, dtype, is_grouped
        kept = _sinusoids(config, KEPT_FRAMES, tensors["query.weight"])
        weights = AttentionWeights.prepare(config, kept, tensors)
        self._qkv = Linear(weights.qkv.to(dtype), weights.qkv_bias.to(dtype))
        self._out = linear(subset(tensors, "out"), dtype)
        self._kept = Positions(weights.positions.to(dtype), weights.bias.to(dtype), KEPT_FRAMES - 1)
        self._position_weight = tensors["position.weight"]
        self._position_bias = (tensors["position_bias_v"] - tensors["position_bias_u"]) * config.d_head**-0.5

    def positions(self, frames: int) -> Generator[int, None, Positions]:
        """Returns those of distances below `frames`, or more; yields 0 after each block of them."""
        if frames <= KEPT_FRAMES:
            return self._kept
        config, weight = self._config, self._position_weight
        projected = torch.empty(config.n_heads, config.d_head, 2 * frames - 1, dtype=self._dtype, device=weight.device)
        bias = projected.new_empty(config.n_heads, 1, 2 * frames - 1)
        for begin in range(0, 2 * frames - 1, BLOCK_DISTANCES):
            first = frames - 1 - begin
            end = max(first - BLOCK_DISTANCES, -frames)
            sinusoids = distance_sinusoids(first, end, config.d_model, weight.device, weight.dtype)
            block = slice(begin, begin + len(sinusoids))
            projected[..., block], bias[..., block] = project_positions(config, sinusoids, weight, self._position_bias)
            yield 0
        return Positions(projected, bias, frames - 1)

    def project(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Writes queries, keys and values of x [M, D], normalized, to out [3, H, M, dh]."""
        config = self._config
        out.copy_(self._qkv(x).view(len(x), 3, config.n_heads, config.d_head).permute(1, 2, 0, 3))

    def mix(
        self, projected: torch.Tensor, rows: slice | RowGroup, positions: Positions, reach: Reach | None
    ) -> Iterator[int]:
        """Replaces the queries of a row or of a group of rows by what each mixes; yields the number of each block's.

        projected: queries, keys and values of the strip [3, H, M, dh]; positions: within `reach`.
        """
        if isinstance(rows, slice):
            yield from self._mix(projected[:, :, rows].unsqueeze(2), [rows.stop - rows.start], None, positions, reach)
            return
        padded = projected.index_select(2, rows.padded).unflatten(2, (len(rows.lengths), -1))
        yield from self._mix(padded, rows.lengths, rows.is_padding, positions, reach)
        projected[0].index_copy_(1, rows.frames, padded[0].flatten(1, 2).index_select(1, rows.own))

    def _mix(
        self,
        projected: torch.Tensor,
        lengths: Sequence[int],
        is_padding: torch.Tensor | None,
        positions: Positions,
        reach: Reach | None,
    ) -> Iterator[int]:
        """projected: [3, H, R, L, dh]; lengths, is_padding: as in `RowGroup`."""
        query, keys, values = projected
        rows, frames, _ = query.shape[1:]
        chunks = reach if isinstance(reach, Chunks) else None
        left, right = _band(reach) or (frames, frames)
        queries, heads = self._block(rows * _keys_seen(frames, reach), reach, query.device)
        for begin in range(0, frames, queries):
            end = min(begin + queries, frames)
            first, last = max(begin - left, 0), min(end + right, frames)
            count, size = end - begin, last - first
            column = positions.farthest - (end - 1 - first)
            columns = slice(column, column + count + size - 1)
            width = count + size - 1
            hidden = [] if chunks is None else [chunks.hidden(range(begin, end), range(first, last), query.device)]
            hidden += [] if is_padding is None else [is_padding[:, None, first:last]]
            for head in range(0, len(query), heads):
                some = slice(head, head + heads)
                block = query[some, :, begin:end]  # [h, R, Q, dh]
                # 1) scores of positions by distance, the farthest first, then in the order of keys
                by_distance = torch.bmm(block.flatten(1, 2), positions.projected[some, :, columns])
                by_distance.add_(positions.bias[some, :, columns])
                # Query i and key j are at column Q - 1 - i + j.
                pairs = len(block) * rows
                shifted = by_distance.as_strided((pairs, count, size), (count * width, width - 1, 1), count - 1)
                # 2) scores of contents, softmax, mix
                of_keys = slice(first, last)
                some_keys, some_values = (part[some, :, of_keys].flatten(0, 1) for part in (keys, values))
                scores = torch.baddbmm(shifted, block.flatten(0, 1), some_keys.transpose(1, 2))
                for is_hidden in hidden:
                    scores.view(-1, rows, count, size).masked_fill_(is_hidden, torch.finfo(scores.dtype).min / 4)
                block.copy_(torch.bmm(torch.softmax(scores, dim=-1), some_values).view(block.shape))
            yield sum(min(max(length - begin, 0), count) for length in lengths)

    def _block(self, keys_seen: int, reach: Reach | None, device: torch.device) -> tuple[int, int]:
        """Queries and heads of a block: within a step's limit, and on a CPU with scores that its cache holds.

        keys_seen: by a query of each row, in sum.
        """
        config = self._config
        products = GROUP_PRODUCTS if self._is_grouped else BLOCK_PRODUCTS
        queries = max(products // (keys_seen * config.d_model), 1)
        if reach is not None or not self._is_grouped:
            queries = min(queries, BLOCK_QUERIES)
        if device.type != "cpu":
            return queries, config.n_heads
        queries = min(queries, max(CACHED_SCORES // keys_seen, LEAST_QUERIES))
        return queries, max(min(CACHED_SCORES // (queries * keys_seen), config.n_heads), 1)

    def add_to(self, residual: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Returns residual [M, D] + the output projection of mixed [H, M, dh]."""
        return self._out.add_to(residual, mixed.transpose(0, 1).flatten(1))


def _sinusoids(config: EncoderConfig, frames: int, like: torch.Tensor) -> torch.Tensor:
    """[2 * frames - 1, D]"""
    return distance_sinusoids(frames - 1, -frames, config.d_model, like.device, like.dtype)
