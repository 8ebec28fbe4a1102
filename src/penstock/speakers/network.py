"""The network of a speaker model: a transformer over the frames of a step, and a head with a logit for each speaker.

Opened and stored in float32 or int8, with the products of the recognizers' encoders.
"""

from functools import partial

import torch
import torch.nn.functional as F

from penstock.encoder.int8 import Int8Choice, speech_mel
from penstock.encoder.modules import Norm, Tensors, linear, subset
from penstock.encoder.precision import INT8, LEAST_BITS, check_storable, has_int8, is_used, quantized
from penstock.linear import Linear
from penstock.speakers.bundle import SpeakerCheckpoint, SpeakerConfig, write_speaker_checkpoint

_WHAT = "speakers"
_TENSORS = {
    "inputs": ("attention.query", "attention.key", "attention.value"),
    "out": ("attention.out",),
    "up": ("feed_forward.up",),
    "down": ("feed_forward.down",),
}
"""The checkpoint's tensors of each product of a layer."""


class SpeakerNetwork:
    """Without state: the frames of a step come with those of the speaker cache."""

    def __init__(
        self,
        config: SpeakerConfig,
        tensors: Tensors,
        dtype: torch.dtype = torch.float32,
        int8: Int8Choice | None = None,
        speech: torch.Tensor | None = None,
    ):
        """int8: replaces large products of the layers; speech: log-mel [N, F] on which it chooses them, if it does."""
        self.config, self.dtype, self.int8 = config, dtype, int8
        self._embedding = linear(subset(tensors, "embedding"), dtype)
        self._norm_in, self._norm_out = (Norm(subset(tensors, name), dtype) for name in ("norm_in", "norm_out"))
        self._layers: list[_Layer] = []
        inputs = None if speech is None else _SpeechStep(self._norm_in(self.embed(speech)), self)
        for number in range(config.n_layers):
            layer = _Layer(config, subset(tensors, f"layers.{number}"), dtype)
            if int8 is not None:
                int8.convert(f"layers.{number}", layer, None if inputs is None else partial(inputs.run, layer))
            self._layers.append(layer)
        self._head = _Head(config, subset(tensors, "head"), dtype)
        self.silence = tensors["silence"].to(dtype)
        """[D], the frame that fills empty places of a speaker cache."""

    def embed(self, mel: torch.Tensor) -> torch.Tensor:
        """Returns encoder frames [T, D] of log-mel frames [N, F]; the last N % 8 are filled up with zeros."""
        factor = self.config.subsampling_factor
        mel = F.pad(mel, (0, 0, 0, -len(mel) % factor))
        return self._embedding(mel.reshape(len(mel) // factor, factor * mel.shape[1]).to(self.dtype))

    def __call__(self, frames: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Returns logits [B, 8 T, K] of frames [B, T, D]; those after a row's length [B] are undefined."""
        batch, count, _ = frames.shape
        is_valid = torch.arange(count, device=frames.device) < lengths.unsqueeze(1)  # [B, T]
        rows: _PaddedRows | _PackedRows
        rows = _PackedRows(is_valid, lengths.tolist()) if frames.is_cpu else _PaddedRows(is_valid)
        angles = self.rotation(count, frames.device)
        rotation = tuple(rows.take(each.expand(batch, -1, -1)).unsqueeze(1) for each in angles)
        x = self._norm_in(rows.take(frames))
        for layer in self._layers:
            x = layer.step(x, rows, rotation)
        return self._head(rows.put_back(self._norm_out(x)), is_valid)

    def rotation(self, count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine [T, R / 2] of the positions in a step, which begin with 0."""
        config = self.config
        rotated = int(config.d_model // config.n_heads * config.rotary_share)
        powers = torch.arange(0, rotated, 2, device=device).float() / rotated
        angles = torch.outer(torch.arange(count, device=device).float(), config.rope_theta**-powers)
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


class _Layer:
    """x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, config: SpeakerConfig, tensors: Tensors, dtype: torch.dtype):
        self._heads = config.n_heads
        attention, feed_forward = subset(tensors, "attention"), subset(tensors, "feed_forward")
        self._attention_norm = Norm(subset(attention, "norm"), dtype)
        self._inputs = Linear(torch.cat([attention[f"{name}.weight"] for name in ("query", "key", "value")]).to(dtype))
        self._out = linear(subset(attention, "out"), dtype)
        self._feed_forward_norm = Norm(subset(feed_forward, "norm"), dtype)
        self._up, self._down = (linear(subset(feed_forward, name), dtype) for name in ("up", "down"))

    def step(
        self, x: torch.Tensor, rows: "_PaddedRows | _PackedRows", rotation: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """Maps x [M, D] to the same shape; rotation: cosine and sine of each frame, [M, 1, R / 2]."""
        query, key, value = self._inputs(self._attention_norm(x)).view(len(x), 3, self._heads, -1).unbind(1)
        mixed = rows.attend(_rotate(query, *rotation), _rotate(key, *rotation), value)  # [M, D]
        x = self._out.add_to(x, mixed)
        return self._down.add_to(x, F.gelu(self._up(self._feed_forward_norm(x))))


class _PaddedRows:
    """The frames of B rows of T, with those that are only padding: shapes do not depend on lengths."""

    def __init__(self, is_valid: torch.Tensor):
        """is_valid: [B, T]."""
        self._shape, self._mask = is_valid.shape, is_valid[:, None, None]

    def take(self, values: torch.Tensor) -> torch.Tensor:
        """Values [B, T, n] as [M, n]."""
        return values.flatten(0, 1)

    def put_back(self, values: torch.Tensor) -> torch.Tensor:
        """Values [M, n] as [B, T, n]; those of padding are undefined."""
        return values.view(*self._shape, -1)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attention of each row to itself: [M, D] of [M, H, D / H]."""
        q, k, v = (each.view(*self._shape, *each.shape[1:]).transpose(1, 2) for each in (query, key, value))
        return F.scaled_dot_product_attention(q, k, v, self._mask).transpose(1, 2).reshape(len(query), -1)


class _PackedRows:
    """`_PaddedRows` without padding: rows of streams of all ages have 13 to 541 frames."""

    def __init__(self, is_valid: torch.Tensor, lengths: list[int]):
        self._lengths, self._shape = lengths, is_valid.shape
        self._places = is_valid.flatten().nonzero()[:, 0]

    def take(self, values: torch.Tensor) -> torch.Tensor:
        """Implements `_PaddedRows.take`."""
        return values.reshape(-1, values.shape[2])[self._places]

    def put_back(self, values: torch.Tensor) -> torch.Tensor:
        """Implements `_PaddedRows.put_back`."""
        batch, count = self._shape
        padded = values.new_zeros(batch * count, values.shape[1])
        return padded.index_copy_(0, self._places, values).view(batch, count, -1)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Implements `_PaddedRows.attend`."""
        parts = (each.transpose(0, 1).unsqueeze(0).split(self._lengths, dim=2) for each in (query, key, value))
        mixed = [F.scaled_dot_product_attention(q, k, v)[0] for q, k, v in zip(*parts, strict=True)]
        return torch.cat(mixed, dim=1).transpose(0, 1).reshape(len(query), -1)


class _SpeechStep:
    """Speech as one step, through a network that is being built."""

    def __init__(self, x: torch.Tensor, network: SpeakerNetwork):
        """x: [T, D], inputs of the first layer."""
        self._x, self._rows = x, _PaddedRows(x.new_ones(1, len(x), dtype=torch.bool))
        self._rotation = tuple(each.unsqueeze(1) for each in network.rotation(len(x), x.device))

    def run(self, layer: _Layer) -> None:
        """The next layer."""
        self._x = layer.step(self._x, self._rows, self._rotation)


class _Head:
    """Eight frames of 10 ms for each encoder frame, and a logit for each speaker."""

    def __init__(self, config: SpeakerConfig, tensors: Tensors, dtype: torch.dtype):
        self._factor = config.subsampling_factor
        self._in, self._hidden, self._out = (linear(subset(tensors, name), dtype) for name in ("in", "hidden", "out"))
        taps = tensors["upsampling.weight"]  # [8 h, h, 3]
        self._upsampling = Linear(taps.transpose(1, 2).flatten(1).to(dtype), tensors["upsampling.bias"].to(dtype))

    def __call__(self, x: torch.Tensor, is_valid: torch.Tensor) -> torch.Tensor:
        """Maps x [B, T, D] to [B, 8 T, K]."""
        batch, count, d = x.shape
        # 1) a convolution over three encoder frames; before and after a row is nothing
        inner = self._in(x.reshape(-1, d)).view(batch, count, -1).masked_fill(~is_valid.unsqueeze(2), 0)
        around = F.pad(inner, (0, 0, 1, 1))
        triples = torch.cat([around[:, :-2], inner, around[:, 2:]], dim=2)  # [B, T, 3 h]
        # 2) its outputs are the frames of 10 ms
        fine = self._upsampling(triples.flatten(0, 1)).view(batch * count * self._factor, -1)
        return self._out(F.relu(self._hidden(F.relu(fine)))).view(batch, count * self._factor, -1)


def _rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary position: pairs of x [..., T, D / H] are dimension i and i + R / 2 of the first R."""
    half = cosine.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine, rest], dim=-1)


@torch.no_grad()
def open_network(checkpoint: SpeakerCheckpoint, precision: str = "float32") -> SpeakerNetwork:
    """Opens the network on the CPU; precision: INT8, or float32 in any other case.

    A bundle in int8 is int8 in any case. Embedding and head are float32: they are 2 % of the products of a step.
    """
    if (checkpoint.int8 or precision == INT8) and has_int8(_WHAT):
        int8 = Int8Choice(checkpoint, tensor_names=_tensor_names)
        speech = speech_mel(checkpoint) if int8.needs_speech else None
        network = SpeakerNetwork(checkpoint.config, checkpoint.tensors(), int8=int8, speech=speech)
        is_used(int8, what=_WHAT)
        return network
    return SpeakerNetwork(checkpoint.config, checkpoint.tensors())


@torch.no_grad()
def store_int8(checkpoint: SpeakerCheckpoint) -> SpeakerCheckpoint:
    """Rewrites a bundle as `penstock.encoder.precision.store_int8`."""
    check_storable(checkpoint)
    tensors, int8 = checkpoint.tensors(as_stored=True), Int8Choice(bits=LEAST_BITS, tensor_names=_tensor_names)
    SpeakerNetwork(checkpoint.config, checkpoint.tensors(), int8=int8, speech=speech_mel(checkpoint))
    if not is_used(int8, what=_WHAT):
        return checkpoint
    stored = quantized(tensors, int8)
    return write_speaker_checkpoint(checkpoint.directory, checkpoint.config, tensors, checkpoint.source, stored)


def _tensor_names(path: str) -> list[str]:
    """The checkpoint's tensors of a product `layers.I.NAME`."""
    layer, _, name = path.rpartition(".")
    return [f"{layer}.{each}.weight" for each in _TENSORS[name]]
