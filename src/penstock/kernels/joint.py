"""The joint and its arg-max as one step: by the kernel where there is one, in torch elsewhere."""

from functools import partial

import torch

from penstock.kernels.capability import TYPES, choose
from penstock.kernels.contracts import JointChoice, JointWeights
from penstock.kernels.torch_twins import choose_labels

_ACTIVATIONS = ("relu", "tanh", "sigmoid")


class FusedJoint:
    """What a greedy search asks of the joint, without logits in memory where the kernel runs."""

    def __init__(self, weights: JointWeights, use_kernel: bool | None = None):
        """use_kernel: None takes the kernel where the weights' device runs it; True on a CPU is for tests.

        ValueError for weights that make no joint, or where a kernel is asked for and cannot be.
        """
        columns = weights.weight.shape[1]
        if weights.activation not in _ACTIVATIONS:
            raise ValueError(f"unknown joint activation {weights.activation!r}: one of {', '.join(_ACTIVATIONS)}")
        if len(weights.bias) != columns or not 0 < weights.vocabulary_size < columns:
            raise ValueError(
                f"a joint of {columns} outputs and {len(weights.bias)} biases has no {weights.vocabulary_size} labels"
            )
        if weights.weight.dtype not in TYPES:
            raise ValueError(f"the joint's weights are {weights.weight.dtype}, not float32, float16 or bfloat16")
        self.weights = weights
        self.uses_kernel = choose(weights.weight.device, use_kernel)
        """For the log."""
        if self.uses_kernel:
            from penstock.kernels.fused_joint import JointKernel  # here, because it imports the GPU language

            self._choose = JointKernel(weights)
        else:
            self._choose = partial(choose_labels, weights)

    def __call__(
        self, frame_rows: torch.Tensor, predictor_rows: torch.Tensor, extra: torch.Tensor | None = None
    ) -> JointChoice:
        """frame_rows: [N, W, J], or [N, J]; predictor_rows: [N, J], one for all W; extra: [N, V] float32, likewise.

        `extra` chooses among labels only; whether it is blank is for the caller, from the scores without it. No score
        may be NaN or +inf; a label's may be -inf. (Rows with NaN get rubbish, but indices that there are.) Never
        synchronises with the host.
        """
        return self._choose(frame_rows, predictor_rows, extra)
