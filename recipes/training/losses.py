"""The Transducer loss for RNN-T and TDT as one recursion over frames, vectorised over batch and labels.

RNN-T (Graves, arXiv 1211.3711) is TDT (arXiv 2304.06795) in which a blank lasts one frame and a label none. Within a
frame the recursion over labels is a cumulative log-sum-exp; over frames it is a loop. Gradients are autograd's.
"""

import torch

_IMPOSSIBLE = -1e30


def transducer_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    frame_counts: torch.Tensor,
    label_counts: torch.Tensor,
    durations: tuple[int, ...] = (),
) -> torch.Tensor:
    """Negative log-likelihood [B] of the labels.

    logits: [B, T, U + 1, V + 1 + D] (blank after the labels, then one logit for each of `durations`, encoder frames);
    labels: [B, U] int64; frame_counts, label_counts: [B] int64, both within T and U, frames at least 1.
    """
    frames, places = logits.shape[1:3]
    outputs = logits.shape[3] - len(durations)
    log_probs = torch.log_softmax(logits[..., :outputs].float(), dim=-1)
    blank = log_probs[..., -1]  # [B, T, U + 1]
    index = labels[:, None, :, None].expand(-1, frames, -1, -1)
    label = log_probs[:, :, : places - 1].gather(3, index).squeeze(3)  # [B, T, U]
    if durations:
        duration = torch.log_softmax(logits[..., outputs:].float(), dim=-1)
        blanks = {d: blank + duration[..., i] for i, d in enumerate(durations) if d > 0}
        jumps = {d: label + duration[:, :, : places - 1, i] for i, d in enumerate(durations)}
    else:
        blanks, jumps = {1: blank}, {0: label}
    return _forward(blanks, jumps, frame_counts, label_counts)


def _forward(
    blanks: dict[int, torch.Tensor],
    jumps: dict[int, torch.Tensor],
    frame_counts: torch.Tensor,
    label_counts: torch.Tensor,
) -> torch.Tensor:
    """Sums over all paths. blanks[d] [B, T, U + 1], jumps[d] [B, T, U]: log-probabilities of moving d frames on."""
    batch, frames, places = next(iter(blanks.values())).shape
    within = jumps.get(0)
    blank_frames = {d: b.unbind(1) for d, b in blanks.items()}
    jump_frames = {d: j.unbind(1) for d, j in jumps.items() if d > 0}
    reached: list[torch.Tensor] = []  # alpha of each frame
    ends: list[torch.Tensor] = []  # log-probability of having just moved to frame t, t = 1 .. T
    first = next(iter(blanks.values())).new_full((batch, places), _IMPOSSIBLE)
    first[:, 0] = 0.0
    entered = first
    for t in range(frames):
        reached.append(entered if within is None else _labels_within(entered, within[:, t]))
        arrivals = [reached[t + 1 - d] + rows[t + 1 - d] for d, rows in blank_frames.items() if t + 1 - d >= 0]
        by_blank = _log_sum(arrivals) if arrivals else torch.full_like(first, _IMPOSSIBLE)
        ends.append(by_blank)  # the last step is a blank
        labelled = [reached[t + 1 - d][:, :-1] + rows[t + 1 - d] for d, rows in jump_frames.items() if t + 1 - d >= 0]
        entered = by_blank
        if labelled and places > 1:
            grown = torch.nn.functional.pad(_log_sum(labelled), (1, 0), value=_IMPOSSIBLE)
            entered = torch.logaddexp(by_blank, grown)
    total = torch.stack(ends, dim=1)  # [B, T, U + 1]
    rows = torch.arange(batch, device=total.device)
    return -total[rows, frame_counts - 1, label_counts]


def _labels_within(entered: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Adds the paths that emit labels without moving time. entered: [B, U + 1], label: [B, U]."""
    steps = torch.nn.functional.pad(label.cumsum(dim=1), (1, 0))
    return steps + torch.logcumsumexp(entered - steps, dim=1)


def _log_sum(terms: list[torch.Tensor]) -> torch.Tensor:
    return terms[0] if len(terms) == 1 else torch.logsumexp(torch.stack(terms), dim=0)
