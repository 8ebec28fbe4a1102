"""The encoder of an offline model: log-mel of whole windows in, their encoder frames out.

Windows have no state and share nothing but the batch: each gives the frames that it gives alone, up to rounding.
"""

from collections.abc import Generator, Iterator, Sequence
from functools import partial

import torch

from penstock.encoder.int8_choice import Int8Choice, speech_mel
from penstock.encoder.modules import Tensors
from penstock.encoder.window.attention import Band, Reach, rows_of_reaches
from penstock.encoder.window.layers import LAYER_PARTS, WindowLayer, Workspace
from penstock.encoder.window.strip import Strip
from penstock.encoder.window.subsampling import Mel, MelReader, WindowSubsampling
from penstock.model.bundle import Checkpoint
from penstock.model.config import EncoderConfig
from penstock.runtime import prepare_device, trim_heap


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
        """What the checkpoint was trained with; None for attention to everything."""
        self.int8 = int8
        """What was chosen; None in other precisions."""
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
