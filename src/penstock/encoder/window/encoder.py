"""The encoder of an offline model: log-mel of whole windows in, their encoder frames out.

Windows have no state and share nothing but the batch: each gives the frames that it gives alone, up to rounding. Each
part of a layer runs block by block, so that a step stays short. Feed-forward, norms and projections are those of the
streaming encoder.

Strided convolutions run over a window in tiles of bounded memory. Each has one zero before and one after its input, in
time and frequency: output o reads inputs 2o - 1, 2o, 2o + 1. A tile begins with the inputs of its own outputs, so it
equals the same frames of the whole window.
"""

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from penstock.encoder.int8 import Int8Choice, speech_mel
from penstock.encoder.modules import Convolution, FeedForward, Norm, StridedLayers, Tensors, subset
from penstock.encoder.window.attention import Band, Reach, RowsOfReach, Strip, WindowAttention, rows_of_reaches
from penstock.model.bundle import Checkpoint
from penstock.model.config import EncoderConfig
from penstock.runtime import prepare_device, trim_heap

TILE_ENCODER_FRAMES, LARGE_TILE_ENCODER_FRAMES = 64, 256
"""Encoder frames of one tile: 5 s at 8x. Its first activation is 16 MB for 128 mel bins and 256 channels. The second is
for a device where launches take longer than the work."""

Mel = torch.Tensor | list[torch.Tensor]
"""Log-mel of a window [N, F], or a list of consecutive parts of it [n, F], which its reader empties."""
BLOCK_NUMBERS = 1 << 18
"""Numbers of the strip whose activations exist at once: 512 frames at D = 512, at most 0.1 s of one core's work."""
GROUP_NUMBERS = 1 << 22
"""The same where rows are grouped."""
LAYER_PARTS = 4
"""Parts of a layer's work: before, in and after the attention, and from the convolution on."""


class MelReader:
    """Reads the frames of one window from its beginning to its end."""

    def __init__(self, mel: Mel):
        self._pieces, self._begin = mel if isinstance(mel, list) else [mel], 0
        self.frames = sum(map(len, self._pieces))
        """N"""

    def read(self, begin: int, end: int) -> torch.Tensor:
        """The frames `begin` .. `end`, [n, F]; removes pieces that end before them."""
        while self._pieces and self._begin + len(self._pieces[0]) <= begin:
            self._begin += len(self._pieces.pop(0))
        pieces, first = [], self._begin
        for piece in self._pieces:
            if first >= end:
                break
            pieces.append(piece[max(begin - first, 0) : end - first])
            first += len(piece)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def close(self) -> None:
        """Removes the other pieces."""
        self._pieces.clear()


class _Inputs(NamedTuple):
    """The inputs of one layer for a range of its outputs."""

    begin: int
    end: int
    zeros_before: int
    zeros_after: int


class WindowSubsampling:
    """The layers over one window after another."""

    def __init__(self, config: EncoderConfig, tensors: Tensors, dtype: torch.dtype):
        self._strided = StridedLayers(config, tensors, dtype)
        self._device, self._dtype = tensors["out.bias"].device, dtype

    def encoder_frames(self, mel_frames: int) -> int:
        """Encoder frames of a window: ceil(N / factor)."""
        return self._sizes(mel_frames)[-1]

    def run(self, mel: MelReader, out: torch.Tensor, has_large_tiles: bool) -> Iterator[int]:
        """Writes the frames of a window to out [T, D]; yields the number of each tile's; closes `mel`."""
        size = LARGE_TILE_ENCODER_FRAMES if has_large_tiles else TILE_ENCODER_FRAMES
        for begin in range(0, len(out), size):
            end = min(begin + size, len(out))
            out[begin:end] = self._tile(mel, begin, end)
            yield end - begin
        mel.close()

    def _tile(self, mel: MelReader, begin: int, end: int) -> torch.Tensor:
        """Encoder frames `begin` .. `end` of a window, [T, D]."""
        inputs: list[_Inputs] = []
        for size in reversed(self._sizes(mel.frames)[:-1]):
            first, last = 2 * begin - 1, 2 * end
            begin, end = max(first, 0), min(last, size)
            inputs.insert(0, _Inputs(begin, end, begin - first, last - end))
        x = mel.read(begin, end).to(self._device, self._dtype)[None, :, :, None]  # [1, N, F, 1]
        for layer, span in enumerate(inputs):
            x = self._strided.convolve(layer, _padded(x, span, has_activation=layer > 0))
        return self._strided.out(x[0].relu_().flatten(1))

    def _sizes(self, mel_frames: int) -> list[int]:
        """Frames before the first layer and after each."""
        sizes = [mel_frames]
        for _ in range(self._strided.count):
            sizes.append((sizes[-1] + 1) // 2)
        return sizes


def _padded(x: torch.Tensor, span: _Inputs, has_activation: bool) -> torch.Tensor:
    """Returns x [1, N, F, C], after ReLU where it has one, between the zeros of a layer."""
    _, frames, bins, channels = x.shape
    end = span.zeros_before + frames
    padded = x.new_empty(1, end + span.zeros_after, bins + 2, channels)
    for border in (padded[:, : span.zeros_before], padded[:, end:], padded[:, :, 0], padded[:, :, -1]):
        border.zero_()
    inside = padded[:, span.zeros_before : end, 1:-1]
    torch.clamp_min(x, 0, out=inside) if has_activation else inside.copy_(x)
    return padded


class Workspace:
    """The memory of a batch beside its strip, the same for all layers. M frames, G zeros between rows."""

    def __init__(self, x: torch.Tensor, strip: Strip, heads: int):
        """x: [M, D], the strip."""
        frames, d = x.shape
        memory = x.new_empty(max(3 * frames, frames + strip.padded_frames), d)
        self.projected = memory[: 3 * frames].view(3, heads, frames, -1)
        """Queries, keys and values [3, H, M, dh]; then what each query mixes in its place."""
        self.padded = memory[frames : frames + strip.padded_frames]
        """Inputs of the depthwise convolution [G + M, D], in the place of keys and values."""


class WindowLayer:
    """One layer: half feed-forward, attention, convolution, half feed-forward, norm."""

    def __init__(self, config: EncoderConfig, tensors: Tensors, dtype: torch.dtype, is_grouped: bool):
        self._is_grouped = is_grouped
        self._feed_forward1 = FeedForward(subset(tensors, "feed_forward1"), dtype)
        self._attention_norm = Norm(subset(tensors, "attention.norm"), dtype)
        self._attention = WindowAttention(config, subset(tensors, "attention"), dtype, is_grouped)
        self._convolution = Convolution(subset(tensors, "convolution"), dtype)
        self._feed_forward2 = FeedForward(subset(tensors, "feed_forward2"), dtype)
        self._norm_out = Norm(subset(tensors, "norm_out"), dtype)

    def run(self, x: torch.Tensor, strip: Strip, rows: Sequence[RowsOfReach], work: Workspace) -> Iterator[int]:
        """Replaces x [M, D] by the layer's output; rows: all of the strip.

        Yields after each block the number of frames of which one of `LAYER_PARTS` parts is done.
        """
        size = max((GROUP_NUMBERS if self._is_grouped else BLOCK_NUMBERS) // x.shape[1], 1)
        # 1) feed-forward, queries, keys and values
        for block in strip.blocks(size):
            x[block] = self._feed_forward1.step(x[block])
            self._attention.project(self._attention_norm(x[block]), work.projected[:, :, block])
            yield block.stop - block.start
        # 2) attention within each row
        longest = max(each.scored_frames for each in rows)
        positions = yield from self._attention.positions(longest)
        within = {reach: positions.within(reach) for reach in {each.reach for each in rows}}
        for each in rows:
            yield from self._attention.mix(work.projected, each.rows, within[each.reach], each.reach)
        # 3) its output, and inputs of the convolution
        work.padded.index_fill_(0, strip.zeros, 0.0)
        for block in strip.blocks(size):
            x[block] = self._attention.add_to(x[block], work.projected[0, :, block])
            work.padded.index_copy_(0, strip.places[block], F.glu(self._convolution.gates(x[block]), dim=1))
            yield block.stop - block.start
        # 4) convolution, feed-forward, norm
        for block in strip.blocks(size):
            reach = strip.reach(block)
            mixed = self._convolution.mix(work.padded[reach].unsqueeze(0)).view(-1, x.shape[1])
            if len(mixed) > block.stop - block.start:  # also those of zeros between rows
                mixed = mixed.index_select(0, strip.places[block] - strip.gap - reach.start)
            x[block] = self._norm_out(self._feed_forward2.step(self._convolution.finish(x[block], mixed)))
            yield block.stop - block.start


class WindowEncoder:
    """Encodes windows of any lengths in one batch, without padding or with little."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        is_grouped: bool | None = None,
        int8: Int8Choice | None = None,
    ):
        """is_grouped: attention takes windows of similar lengths together, padded, and other parts take larger blocks,
        so that fewer operations do the same. By default on a GPU; a CPU takes window by window, without padding.
        int8: replaces large products while the layers are read.
        """
        self.config, self.dtype = checkpoint.config.encoder, dtype
        self.band = None if self.config.attention_band is None else Band(*self.config.attention_band)
        """Band that the checkpoint was trained with; None for attention to everything."""
        self.int8 = int8
        """The choice of products in int8; None in other precisions."""
        self._device = prepare_device(device)
        self._is_grouped = self._device.type != "cpu" if is_grouped is None else is_grouped
        folded = torch.promote_types(dtype, torch.float32)

        def read(part: str) -> Tensors:
            """Weights as they are folded; a layer casts them last."""
            tensors = checkpoint.tensors(f"encoder.{part}.")
            return {name.removeprefix(f"encoder.{part}."): t.to(self._device, folded) for name, t in tensors.items()}

        self._subsampling = WindowSubsampling(self.config, read("subsampling"), dtype)
        # Layers store their weights in another order: read one at a time, no more than one is in memory twice.
        self._layers: list[WindowLayer] = []
        speech = None
        if int8 is not None and int8.needs_speech:
            speech = _SpeechWindow(speech_mel(checkpoint), self._subsampling, self.config)
        if int8 is not None:
            int8.convert("subsampling", self._subsampling, None if speech is None else speech.subsample)
        for i in range(self.config.n_layers):
            layer = WindowLayer(self.config, read(f"layers.{i}"), dtype, self._is_grouped)
            if int8 is not None:
                int8.convert(
                    f"layers.{i}", layer, None if speech is None else partial(speech.run_layer, layer, self.band)
                )
            self._layers.append(layer)
            trim_heap()

    def encode(self, mels: Sequence[Mel], bands: Sequence[Reach | None] | None = None) -> list[torch.Tensor]:
        """Returns what `run` returns, at once."""
        steps = self.run(mels, bands)
        while True:
            try:
                next(steps)
            except StopIteration as finished:
                return finished.value

    @torch.inference_mode()
    def run(
        self, mels: Sequence[Mel], bands: Sequence[Reach | None] | None = None
    ) -> Generator[float, None, list[torch.Tensor]]:
        """Encodes windows of log-mel [N, F] and returns the frames [T, D] of each, T = ceil(N / factor).

        Yields the share of its work that is done, 0 .. 1, after each block of a layer: on a CPU at most 0.1 s of one
        core, however long a window is. Closing the generator ends the work. mels: of each window a tensor, or a list of
        consecutive ones [n, F], N = sum of n, from which each is removed when it has been read. bands: what each frame
        of a window attends to, None for all of it; by default the checkpoint's. A window without mel frames has no
        frames.
        """
        readers = [MelReader(mel) for mel in mels]
        lengths = [self._subsampling.encoder_frames(mel.frames) for mel in readers]
        if bands is None:
            bands = [self.band] * len(mels)
        strip = Strip(lengths, self.config.conv_kernel_size // 2, self._device)
        x = torch.empty(strip.frames, self.config.d_model, dtype=self.dtype, device=self._device)
        if strip.frames:
            done, all_work = 0, strip.frames * (1 + LAYER_PARTS * len(self._layers))
            for work in self._run(readers, strip, x, bands):
                done += work
                yield done / all_work
        return strip.split(x)

    def _run(
        self, mels: Sequence[MelReader], strip: Strip, x: torch.Tensor, bands: Sequence[Reach | None]
    ) -> Iterator[int]:
        """Writes all frames to x; yields the frames of one part of a layer, or of the subsampling, that are done."""
        for mel, out in zip(mels, strip.split(x), strict=True):
            yield from self._subsampling.run(mel, out, self._is_grouped)
        work = Workspace(x, strip, self.config.n_heads)
        rows = rows_of_reaches(strip, bands, self.config.d_model, self._is_grouped)
        for layer in self._layers:
            yield from layer.run(x, strip, rows, work)


class _SpeechWindow:
    """Speech through an encoder that is being built, on a CPU."""

    def __init__(self, mel: torch.Tensor, subsampling: WindowSubsampling, config: EncoderConfig):
        self._mel, self._subsampling, self._config = mel, subsampling, config
        self._strip = Strip([subsampling.encoder_frames(len(mel))], config.conv_kernel_size // 2, mel.device)
        self._x = mel.new_empty(self._strip.frames, config.d_model)

    def subsample(self) -> None:
        """The first part."""
        list(self._subsampling.run(MelReader(self._mel), self._x, has_large_tiles=False))

    def run_layer(self, layer: WindowLayer, band: Reach | None) -> None:
        """The next part."""
        rows = rows_of_reaches(self._strip, [band], self._config.d_model, is_grouped=False)
        list(layer.run(self._x, self._strip, rows, Workspace(self._x, self._strip, self._config.n_heads)))
