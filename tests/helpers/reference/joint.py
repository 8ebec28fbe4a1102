"""Joint and arg-max by PyTorch: the reference of `penstock.kernels.joint`."""

import torch

from penstock.kernels.contracts import JointChoice, JointWeights

_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


def choose_labels(
    weights: JointWeights, frames: torch.Tensor, predictions: torch.Tensor, extra: torch.Tensor | None = None
) -> JointChoice:
    """Arguments as of `FusedJoint`; values are rounded to the weights' type at the same places as there."""
    blank = weights.vocabulary_size
    if frames.dim() == 3:
        predictions = predictions.unsqueeze(1)
        extra = None if extra is None else extra.unsqueeze(1)
    # 1) logits of labels, blank and durations
    hidden = _ACTIVATIONS[weights.activation](frames.float() + predictions.float()).to(weights.weight.dtype)
    logits = hidden.float() @ weights.weight.float() + weights.bias.float()  # [..., V + 1 + D]
    total = logits[..., : blank + 1].logsumexp(-1)
    # 2) best label by acoustic score, best duration
    label_logits = logits[..., :blank]
    label_score, label = label_logits.max(-1)
    choice = JointChoice(logits[..., blank] - total, label, label_score - total, None, None, None, None, None)
    if weights.durations:
        duration_score, duration = logits[..., blank + 1 :].log_softmax(-1).max(-1)
        choice = choice._replace(duration=duration, duration_score=duration_score)
    # 3) best label with extra scores
    if extra is not None:
        fused_total, fused_label = (label_logits + extra).max(-1)
        fused_score = label_logits.gather(-1, fused_label.unsqueeze(-1)).squeeze(-1)
        choice = choice._replace(
            fused_label=fused_label, fused_label_score=fused_score - total, fused_total=fused_total - total
        )
    return choice
