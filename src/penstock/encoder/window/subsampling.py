"""Strided convolutions over a whole window, 4 or 8 mel frames to one encoder frame, in tiles of bounded memory.

Each layer has one zero before and one after its input, in time and frequency: output o reads inputs 2o - 1, 2o, 2o + 1.
A tile begins with the inputs of its own outputs, so it equals the same frames of the whole window.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F

from penstock.encoder.modules import Tensors
from penstock.encoder.subsampling import StridedLayers
from penstock.model.config import EncoderConfig

TILE_ENCODER_FRAMES, LARGE_TILE_ENCODER_FRAMES = 64, 256
"""Encoder frames of one tile: 5 s at 8x. Its first activation is 16 MB for 128 mel bins and 256 channels. The second is
for a device where launches take longer than the work."""


Mel = torch.Tensor | list[torch.Tensor]
"""Log-mel of a window [N, F], or a list of consecutive parts of it [n, F], which its reader empties."""


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
            x = self._strided.convolve(layer, F.pad(x, (0, 0, 1, 1, span.zeros_before, span.zeros_after)))
        return self._strided.out(x[0].flatten(1))

    def _sizes(self, mel_frames: int) -> list[int]:
        """Frames before the first layer and after each."""
        sizes = [mel_frames]
        for _ in range(self._strided.count):
            sizes.append((sizes[-1] + 1) // 2)
        return sizes
