"""FrameProjection: encoder frames to what a head computes with, once per chunk; with language prompts in between."""

import torch

from penstock.linear import Linear
from penstock.model.bundle import Checkpoint

Tensors = dict[str, torch.Tensor]


class FrameProjection:
    """A linear layer over encoder frames x, before which a model with language prompts has two others.

    These are `W2 relu(W1 [x; onehot(p)] + b1) + b2` for the prompt p of a stream. A product with a one-hot vector is a
    column, so W1's columns of the prompts are a table of rows, to which b1 is already added.
    """

    def __init__(self, checkpoint: Checkpoint, weight: torch.Tensor, bias: torch.Tensor):
        """weight [J, D], bias [J]: the layer's, on their device."""
        self.is_folded = False
        """True where the layer's weight has that of the prompts' second layer in it."""
        self._prompts: _Prompts | None = None
        if checkpoint.config.prompt is not None:
            read = checkpoint.tensors("prompt.").items()
            tensors = {name: tensor.to(weight.device, weight.dtype) for name, tensor in read}
            joint, (width, hidden) = len(weight), tensors["prompt.out.weight"].shape
            # W2 becomes a part of the layer where that saves products: it does in a joint, not in a CTC head whose
            # labels outnumber the encoder's width.
            self.is_folded = joint * hidden < width * hidden + joint * width
            if self.is_folded:
                weight, bias = _folded(weight, bias, tensors)
            self._prompts = _Prompts(tensors, self.is_folded)
        self._dtype, self._layer = weight.dtype, Linear(weight, bias)

    def __call__(self, encoded: torch.Tensor, prompts: torch.Tensor | None = None) -> torch.Tensor:
        """Projects encoder frames [B, T, D] to [B, T, J]; T may be 0.

        prompts: [B] int64, of a model with language prompts; else not used.
        """
        frames = encoded.flatten(0, 1).to(self._dtype)
        if self._prompts is not None:
            assert prompts is not None, "a model with language prompts needs one for each stream"
            frames = self._prompts.apply(frames, prompts.repeat_interleave(encoded.shape[1]))
        rows = self._layer(frames)
        return rows.view(*encoded.shape[:2], rows.shape[1])


class _Prompts:
    def __init__(self, tensors: Tensors, is_folded: bool):
        self._table, self._input = tensors["prompt.table"], Linear(tensors["prompt.in.weight"])
        self._output = None if is_folded else Linear(tensors["prompt.out.weight"], tensors["prompt.out.bias"])

    def apply(self, frames: torch.Tensor, prompts: torch.Tensor) -> torch.Tensor:
        """Frames [N, D] with prompts [N] after both layers, [N, D], or where W2 is folded after the first, [N, H]."""
        hidden = self._input.add_to(self._table.index_select(0, prompts), frames).relu_()
        return hidden if self._output is None else self._output(hidden)


def _folded(weight: torch.Tensor, bias: torch.Tensor, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight [J, H] and bias [J] that do to W2's input what weight [J, D] and bias [J] do to its output."""
    wide = weight.double()
    folded = wide @ tensors["prompt.out.weight"].double()
    shifted = wide @ tensors["prompt.out.bias"].double() + bias.double()
    return folded.to(weight.dtype), shifted.to(bias.dtype)
