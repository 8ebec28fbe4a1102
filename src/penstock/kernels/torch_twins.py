"""The kernels' contracts in plain torch: what runs where kernels do not, and what kernels are tested against.

Sums are in float32 whatever the inputs are, as in the kernels, and values are rounded to the inputs' type at the same
places. No line here synchronises with the host.
"""

import torch

from penstock.fusion.automaton import Arcs
from penstock.kernels.contracts import JointChoice, JointWeights, NgramArcs, PredictorRows, PredictorWeights

_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


def choose_labels(
    weights: JointWeights, frame_rows: torch.Tensor, predictor_rows: torch.Tensor, extra: torch.Tensor | None = None
) -> JointChoice:
    """frame_rows: [N, W, J] or [N, J]; predictor_rows: [N, J]; extra: [N, V] float32, the same for all W."""
    blank = weights.vocabulary_size
    has_window = frame_rows.dim() == 3
    if has_window:
        predictor_rows = predictor_rows.unsqueeze(1)
        extra = None if extra is None else extra.unsqueeze(1)
    hidden = _ACTIVATIONS[weights.activation](frame_rows.float() + predictor_rows.float()).to(weights.weight.dtype)
    logits = hidden.float() @ weights.weight.float() + weights.bias.float()
    total = logits[..., : blank + 1].logsumexp(-1)
    label_logits = logits[..., :blank]
    label_score, label = label_logits.max(-1)
    duration = duration_score = fused_label = fused_score = fused_total = None
    if weights.durations:
        duration_score, duration = logits[..., blank + 1 :].log_softmax(-1).max(-1)
    if extra is not None:
        fused_total, fused_label = (label_logits + extra).max(-1)
        fused_score = label_logits.gather(-1, fused_label.unsqueeze(-1)).squeeze(-1) - total
        fused_total = fused_total - total
    return JointChoice(
        logits[..., blank] - total,
        label,
        label_score - total,
        duration,
        duration_score,
        fused_label,
        fused_score,
        fused_total,
    )


def step_predictor(
    weights: PredictorWeights, labels: torch.Tensor, is_label: torch.Tensor, old: PredictorRows
) -> PredictorRows:
    """labels: [N] int64, anything where is_label [N] bool is False: those rows keep what they hold."""
    labels = torch.where(is_label, labels, 0)
    selected = is_label.unsqueeze(1)
    gates = weights.label_gates.index_select(0, labels).float()
    hidden, cell = [], []
    for i, layer in enumerate(weights.layers):
        if layer.input_weight is not None:
            gates = hidden[-1].float() @ layer.input_weight.float() + layer.bias.float()
        gates = gates + old.hidden[:, i].float() @ layer.hidden_weight.float()
        in_gate, forget_gate, candidate, out_gate = gates.chunk(4, dim=1)
        new_cell = forget_gate.sigmoid() * old.cell[:, i].float() + in_gate.sigmoid() * candidate.tanh()
        new_hidden = out_gate.sigmoid() * new_cell.tanh()
        hidden.append(torch.where(selected, new_hidden.to(old.hidden.dtype), old.hidden[:, i]))
        cell.append(torch.where(selected, new_cell.to(old.cell.dtype), old.cell[:, i]))
    rows = hidden[-1].float() @ weights.projection_weight.float() + weights.projection_bias.float()
    rows = torch.where(selected, rows.to(old.rows.dtype), old.rows)
    return PredictorRows(rows, torch.stack(hidden, 1), torch.stack(cell, 1))


def take_arcs(arcs: NgramArcs, order: int, states: torch.Tensor, labels: torch.Tensor) -> Arcs:
    """One arc from each of `states` [...] int64 by `labels` [...], backing off `order` - 1 times at most.

    Follows `order` - 1 back-offs, always, and searches all of them at once.
    """
    contexts, paid = back_off(arcs, order, states)
    scores = paid[-1] + arcs.root_scores[labels]
    next_states = arcs.root_states[labels]
    if order > 1:
        asked = torch.stack(contexts[:-1]) * len(arcs.root_scores) + labels
        places = torch.searchsorted(arcs.arc_keys, asked)
        found = arcs.arc_keys[places] == asked
        level_scores, level_states = arcs.arc_scores[places], arcs.arc_states[places]
        for level in range(order - 2, -1, -1):  # the longest context has the last word
            scores = torch.where(found[level], paid[level] + level_scores[level], scores)
            next_states = torch.where(found[level], level_states[level], next_states)
    return Arcs(scores, next_states)


def back_off(arcs: NgramArcs, order: int, states: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The contexts of `states` [...] from the longest on, `order` of them, and what backing off to each has cost."""
    contexts, paid = [states], [torch.zeros(states.shape, device=states.device)]
    for _ in range(order - 1):
        paid.append(paid[-1] + arcs.backoff_scores[contexts[-1]])
        contexts.append(arcs.backoff_states[contexts[-1]])
    return contexts, paid
