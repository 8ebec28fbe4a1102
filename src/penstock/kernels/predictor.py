"""The prediction network's masked step: by the kernel where there is one, in torch elsewhere."""

from functools import partial

import torch

from penstock.kernels.capability import choose
from penstock.kernels.contracts import PredictorRows, PredictorWeights
from penstock.kernels.torch_twins import step_predictor


class FusedPredictor:
    """Moves the hypotheses that have a new label on, and leaves the others as they are."""

    def __init__(self, weights: PredictorWeights, use_kernel: bool | None = None):
        """use_kernel: None takes the kernel where the weights' device runs it; True on a CPU is for tests.

        ValueError for weights that do not fit each other, or where a kernel is asked for and cannot be.
        """
        width = weights.projection_weight.shape[0]
        layers_fit = all(layer.hidden_weight.shape == (width, 4 * width) for layer in weights.layers)
        if not layers_fit or weights.label_gates.shape[1] != 4 * width:
            raise ValueError(f"the predictor's layers do not all have the projection's width {width}")
        if [layer.input_weight is None for layer in weights.layers] != [i == 0 for i in range(len(weights.layers))]:
            raise ValueError("the first predictor layer, and no other, has its input product in the label table")
        self.uses_kernel = choose(weights.projection_weight.device, use_kernel)
        """For the log."""
        if self.uses_kernel:
            from penstock.kernels.predictor_step import PredictorKernel  # here, because it imports the GPU language

            self._step = PredictorKernel(weights)
        else:
            self._step = partial(step_predictor, weights)

    def __call__(self, labels: torch.Tensor, is_label: torch.Tensor, old: PredictorRows) -> PredictorRows:
        """New tensors: where is_label [N] bool holds, the rows after `labels` [N] int64; elsewhere those of `old`.

        Labels of other rows are not looked at. Never synchronises with the host.
        """
        return self._step(labels, is_label, old)
