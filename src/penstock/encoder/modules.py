"""The parts of a FastConformer encoder without attention: linear, norm, feed-forward, convolution and subsampling.

Subsampling is causal strided convolutions in time: 4 or 8 mel frames become one encoder frame, chunk by chunk, exactly.
NeMo pads each layer with two columns before and one after. Counted from `factor - 1` virtual frames before the stream's
start, output o of a layer reads inputs 2o - 1, 2o and 2o + 1: one column back. So the state is one column per layer,
and a first chunk has the shape of a later one. A convolution of zeros is not zero, therefore positions before the start
and after the end are zeroed before every layer.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F

from penstock.linear import Linear
from penstock.model.config import EncoderConfig

Tensors = dict[str, torch.Tensor]
NORM_EPSILON = 1e-5


def subset(tensors: Tensors, prefix: str) -> Tensors:
    """Returns the tensors whose names start with `prefix.`, under the rest of their names."""
    return {name[len(prefix) + 1 :]: t for name, t in tensors.items() if name.startswith(prefix + ".")}


def linear(tensors: Tensors, dtype: torch.dtype, scale: float = 1.0) -> Linear:
    """The layer with `weight` [out, in] and maybe `bias` [out], both times `scale`, then cast."""
    bias = (tensors["bias"] * scale).to(dtype) if "bias" in tensors else None
    return Linear((tensors["weight"] * scale).to(dtype), bias)


class Norm:
    """Layer norm over the hidden axis."""

    def __init__(self, tensors: Tensors, dtype: torch.dtype):
        self._weight, self._bias = tensors["weight"].to(dtype), tensors["bias"].to(dtype)
        self._shape = self._weight.shape

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalizes x [..., D]."""
        return torch.layer_norm(x, self._shape, self._weight, self._bias, NORM_EPSILON)


class FeedForward:
    """residual + 1/2 down(silu(up(norm(x)))), with the half folded into `down`."""

    def __init__(self, tensors: Tensors, dtype: torch.dtype):
        self._norm = Norm(subset(tensors, "norm"), dtype)
        self._up = linear(subset(tensors, "up"), dtype)
        self._down = linear(subset(tensors, "down"), dtype, scale=0.5)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        """Maps x [B * T, D] to the same shape."""
        return self._down.add_to(x, F.silu(self._up(self._norm(x)), inplace=True))


class Convolution:
    """residual + pointwise2(silu(norm(depthwise(glu(pointwise1(norm(x))))))), causal in time or over a window."""

    def __init__(self, tensors: Tensors, dtype: torch.dtype):
        self._norm = Norm(subset(tensors, "norm"), dtype)
        self._pointwise1 = linear(subset(tensors, "pointwise1"), dtype)
        self._depthwise_weight = tensors["depthwise.weight"].to(dtype)  # [D, k]
        self._taps = self._depthwise_weight.t().contiguous()  # [k, D], for the kernel
        self._depthwise_bias = tensors["depthwise.bias"].to(dtype) if "depthwise.bias" in tensors else None
        depthwise_norm = subset(tensors, "depthwise_norm")
        self._depthwise_norm = Norm(depthwise_norm, dtype) if depthwise_norm else None
        self._pointwise2 = linear(subset(tensors, "pointwise2"), dtype)

    def step(self, x: torch.Tensor, window: torch.Tensor, window_end: torch.Tensor) -> torch.Tensor:
        """Maps x [B * T, D] to the same shape.

        window: [B, k - 1 + T, D], starts with the k - 1 inputs before this chunk. window_end: a view of its last T
        frames, where this chunk's inputs are written.
        """
        batch, frames, d = window_end.shape
        # 1) GLU, written after the inputs of earlier chunks
        torch.ops.aten.glu.out(self.gates(x).view(batch, frames, 2 * d), 2, out=window_end)
        # 2) causal depthwise convolution over the window, then the rest
        return self.finish(x, self.mix(window).view(-1, d))

    def step_fused(self, x: torch.Tensor, tails: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Does `step` in a kernel. tails: this layer's of `EncoderState.conv_tails`."""
        from penstock.kernels.chunk_step import convolve_chunk  # here, because it imports Triton

        has_activation = self._depthwise_norm is None
        mixed = convolve_chunk(self.gates(x), tails, slots, self._taps, self._depthwise_bias, has_activation)
        return self._pointwise2.add_to(x, mixed) if has_activation else self.finish(x, mixed)

    def gates(self, x: torch.Tensor) -> torch.Tensor:
        """Returns values and gates [M, 2 * D] of x [M, D]; their GLU is the input of `mix`."""
        return self._pointwise1(self._norm(x))

    def mix(self, window: torch.Tensor) -> torch.Tensor:
        """The depthwise convolution: [B, k - 1 + T, D] -> [B, T, D], or [B, D] for one frame."""
        return depthwise(window, self._depthwise_weight, self._depthwise_bias)

    def finish(self, residual: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Returns residual [M, D] + what follows `mix`."""
        if self._depthwise_norm is not None:
            mixed = self._depthwise_norm(mixed)
        return self._pointwise2.add_to(residual, F.silu(mixed))


_FEW_FRAMES = 24
"""Up to this many frames a sum over taps is faster than the depthwise convolution of the library on the CPU; for one
frame per stream on a GPU, too."""


def depthwise(padded: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Convolves each channel in time: padded [B, k - 1 + T, D], weight [D, k] -> [B, T, D]."""
    batch, length, d = padded.shape
    taps = weight.shape[1]
    frames = length - taps + 1
    if frames == 1 or (padded.is_cpu and batch * frames <= _FEW_FRAMES):
        out = (padded * weight.t()).sum(1) if frames == 1 else (padded.unfold(1, taps, 1) * weight).sum(-1)
        return out if bias is None else out.add_(bias)
    out = F.conv2d(padded.transpose(1, 2).unsqueeze(2), weight[:, None, None], bias, groups=d)  # [B, D, 1, T]
    return out.squeeze(2).transpose(1, 2).contiguous()


class Subsampled(NamedTuple):
    """Result of one step."""

    frames: torch.Tensor
    """[B * T, D]"""
    columns: tuple[torch.Tensor, ...]
    """The state for the next chunk, [B, F, 1] for the first layer and [B, F', C] for the others."""
    valid_encoder_frames: torch.Tensor
    """[B] int64, encoder frames of this chunk that hold audio."""


class StridedLayers:
    """Layer 1 is a plain convolution, the others depthwise then pointwise; ReLU after each; then a projection.

    Activations are [B, N, F, C] in memory: channels last, where depthwise convolutions are fastest on the CPU.
    """

    def __init__(self, config: EncoderConfig, tensors: Tensors, dtype: torch.dtype):
        weight, bias = projection(config, tensors)
        self.out = Linear(weight.to(dtype), bias.to(dtype))
        """From [M, bins * C] to [M, D]."""
        tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        self.count = config.subsampling_layers
        names = ["first", *(f"depthwise.{i}" for i in range(self.count - 1))]
        self._convs = [
            (tensors[f"{name}.weight"].contiguous(memory_format=torch.channels_last), tensors[f"{name}.bias"])
            for name in names
        ]
        self._pointwise = [
            (tensors[f"pointwise.{i}.weight"].t().contiguous(), tensors[f"pointwise.{i}.bias"])
            for i in range(self.count - 1)
        ]

    @property
    def channels(self) -> int:
        """C of all layers' outputs."""
        return self._convs[0][0].shape[0]

    def convolve(self, layer: int, padded: torch.Tensor) -> torch.Tensor:
        """Runs a layer without its ReLU over padded input: [B, 2 * N + 1, F, C] -> [B, N, (F - 1) / 2, C'] (floor)."""
        weight, bias = self._convs[layer]
        groups = 1 if layer == 0 else weight.shape[0]
        x = F.conv2d(padded.permute(0, 3, 1, 2), weight, bias, stride=2, groups=groups).permute(0, 2, 3, 1)
        if layer > 0:
            weight, bias = self._pointwise[layer - 1]
            shape = x.shape
            x = torch.addmm(bias, x.reshape(-1, shape[3]), weight).view(shape)
        return x


class Subsampling:
    """The layers over chunks of streams."""

    def __init__(self, config: EncoderConfig, tensors: Tensors, dtype: torch.dtype):
        self._strided = StridedLayers(config, tensors, dtype)
        self._zero = torch.zeros((), dtype=dtype, device=tensors["out.bias"].device)

    def step(
        self,
        mel: torch.Tensor,
        columns: tuple[torch.Tensor, ...],
        is_first: torch.Tensor,
        valid_mel_frames: torch.Tensor,
    ) -> Subsampled:
        """Subsamples one chunk.

        mel: [B, N, F]; columns: as in `Subsampled`; is_first: [B] bool, True for the first chunk of a stream;
        valid_mel_frames: [B] int64, 0 .. N.
        """
        # 1) find the audio in the input of each layer
        masks, valid = [], valid_mel_frames
        for layer in range(self._strided.count):
            position = torch.arange(mel.shape[1] >> layer, device=mel.device)
            begin = ((1 << (self._strided.count - layer)) - 1) * is_first
            is_audio = (position >= begin.unsqueeze(1)) & (position < valid.unsqueeze(1))  # [B, N]
            masks.append((is_audio if layer == 0 else is_audio.to(mel.dtype))[:, :, None, None])
            valid = (valid + 1) // 2
        # 2) convolve a tile of the batch at a time
        tile = _tile_rows(mel, self._strided.channels)
        flat, next_columns = [], []
        parts = (zip(*(each.split(tile) for each in one), strict=True) for one in (columns, masks))
        for part in zip(mel.split(tile), *parts, strict=True):
            tile_flat, tile_columns = self._convolve(*part)
            flat.append(tile_flat)
            next_columns.append(tile_columns)
        # 3) project to the hidden width
        x = torch.cat(flat) if len(flat) > 1 else flat[0]  # [B, T, bins * C]
        return Subsampled(
            self._strided.out(x.flatten(0, 1)),
            tuple(torch.cat(parts) for parts in zip(*next_columns, strict=True)),
            valid,
        )

    def _convolve(
        self, mel: torch.Tensor, columns: tuple[torch.Tensor, ...], masks: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Returns [B, T, bins * C] and the columns for the next chunk."""
        x = mel.unsqueeze(3)  # [B, N, F, 1]
        next_columns = []
        for layer in range(self._strided.count):
            # 1) zero what is not audio, put the column of the last chunk in front, keep this chunk's last column
            padded = self._pad(x, columns[layer], masks[layer])
            next_columns.append(padded[:, -1, 2:-1])
            # 2) convolve, [B, 1 + N, F + 3, C] -> [B, N / 2, F / 2 + 1, C]
            x = self._strided.convolve(layer, padded).relu_()
        return x.flatten(2), next_columns

    def _pad(self, x: torch.Tensor, column: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Returns [B, 1 + N, 2 + F + 1, C]: the column before the chunk, then x [B, N, F, C], zero outside of audio.

        mask: [B, N, 1, 1], bool for mel frames, else 1 in audio and 0 outside.
        """
        batch, frames, bins, channels = x.shape
        padded = x.new_empty(batch, 1 + frames, bins + 3, channels)
        padded[:, :, :2].zero_()
        padded[:, :, -1].zero_()
        padded[:, 0, 2:-1] = column
        inside = padded[:, 1:, 2:-1]
        if channels == 1:  # mel frames, which may be NaN where there is no audio
            torch.where(mask, x, self._zero, out=inside)
        else:  # finite by now, and a product is several times faster than torch.where
            torch.mul(x, mask, out=inside)
        return padded


def projection(config: EncoderConfig, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight [D, F * C] and bias [D], both scaled.

    The checkpoint's projection takes inputs in the order (channel, bin), this one channels last: (bin, channel).
    """
    scale = config.d_model**0.5 if config.xscaling else 1.0
    channels, bins = config.subsampling_channels, config.subsampled_mel_bins[-1]
    weight = tensors["out.weight"].view(-1, channels, bins).transpose(1, 2).flatten(1)
    return weight * scale, tensors["out.bias"] * scale


_TILE_BYTES = 1 << 20


def _tile_rows(mel: torch.Tensor, channels: int) -> int:
    """Batch rows to convolve at once: on the CPU as many as keep the widest activation in the cache, elsewhere all."""
    if not mel.is_cpu:
        return len(mel)
    row_bytes = mel[0].numel() // 4 * channels * mel.element_size()
    return max(1, _TILE_BYTES // row_bytes)
