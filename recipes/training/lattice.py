"""The points of Transducer lattices, the sum over their paths, and the Transducer loss of RNN-T and TDT.

A lattice has a point (t, u) for each encoder frame t and each number of labels u emitted before, its place. All points
of N lattices, or a band around an alignment, are one packed list (`Cells`), so that a head computes its outputs for
these points alone. `log_probability` goes over anti-diagonals (Graves, arXiv 1211.3711): t + u grows by one with every
label and every blank. It can exclude single moves; it has no durations.

`transducer_loss` is one recursion over frames, vectorised over batch and labels. RNN-T is TDT (arXiv 2304.06795) in
which a blank lasts one frame and a label none. Within a frame the recursion over labels is a cumulative log-sum-exp;
over frames it is a loop. Gradients are autograd's.
"""

from typing import NamedTuple

import torch

_IMPOSSIBLE = -1e30


class Cells(NamedTuple):
    """C points of N lattices. T and U are the largest counts of frames and labels."""

    rows: torch.Tensor
    """[C] int64, the lattice, 0 .. N - 1."""
    frames: torch.Tensor
    """[C] int64, the encoder frame."""
    places: torch.Tensor
    """[C] int64, labels emitted before, 0 .. U."""
    allows_label: torch.Tensor
    """[C] bool, True where the next label may be emitted. A blank may be everywhere."""
    frame_counts: torch.Tensor
    """[N] int64, at least 1."""
    label_counts: torch.Tensor
    """[N] int64"""

    def labels_of(self, labels: torch.Tensor) -> torch.Tensor:
        """The next label [C] at each point, of labels [N, U] int64; any label after the last one."""
        if not labels.shape[1]:
            return torch.zeros_like(self.rows)
        return labels[self.rows, self.places.clamp(max=labels.shape[1] - 1)]


def all_cells(frame_counts: torch.Tensor, label_counts: torch.Tensor) -> Cells:
    """All points of lattices with these counts, both [N] int64."""
    frame, place = _axes(frame_counts, label_counts)
    is_cell = (frame < frame_counts.view(-1, 1, 1)) & (place <= label_counts.view(-1, 1, 1))
    return _packed(is_cell, place < label_counts.view(-1, 1, 1), frame_counts, label_counts)


def band_cells(frame_counts: torch.Tensor, label_counts: torch.Tensor, times: torch.Tensor, band: int) -> Cells:
    """The points of the paths that emit label u at most `band` encoder frames before or after times[u].

    Alignment restriction (Mahadeokar et al., SLT 2021). frame_counts, label_counts: [N] int64; times: [N, U] int64,
    the encoder frame of each label, ascending.
    """
    frame, place = _axes(frame_counts, label_counts)
    last = frame_counts.view(-1, 1) - 1
    # 1) the frames in which each label may be emitted, [N, U]
    times = times[:, : place.numel() - 1]
    is_label = torch.arange(times.shape[1], device=times.device) < label_counts.view(-1, 1)
    earliest = torch.where(is_label, times - band, 0)
    latest = torch.where(is_label, torch.minimum(times + band, last), last)
    latest = torch.cat([latest, last], dim=1).unsqueeze(1)
    # 2) a place is entered by the label before it and left by its own, the last one at the end: [N, T, U + 1]
    entered = torch.nn.functional.pad(earliest, (1, 0)).unsqueeze(1)
    is_cell = (frame >= entered) & (frame <= latest) & (place <= label_counts.view(-1, 1, 1))
    emits = torch.nn.functional.pad(earliest, (0, 1)).unsqueeze(1)
    allows_label = (frame >= emits) & (place < label_counts.view(-1, 1, 1))
    return _packed(is_cell, allows_label, frame_counts, label_counts)


def _axes(frame_counts: torch.Tensor, label_counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames [1, T, 1] and places [1, 1, U + 1]."""
    device = frame_counts.device
    frames, places = int(frame_counts.max()), int(label_counts.max()) + 1
    return torch.arange(frames, device=device).view(1, -1, 1), torch.arange(places, device=device).view(1, 1, -1)


def _packed(
    is_cell: torch.Tensor, allows_label: torch.Tensor, frame_counts: torch.Tensor, label_counts: torch.Tensor
) -> Cells:
    rows, frames, places = is_cell.nonzero(as_tuple=True)
    allowed = allows_label.expand_as(is_cell)[rows, frames, places]
    return Cells(rows, frames, places, allowed, frame_counts, label_counts)


def log_probability(cells: Cells, blanks: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Log-probabilities [N] float64 of the paths through `cells`, each ended by a blank at its last frame.

    blanks, labels: [C], log-probabilities of blank and of the next label at each point; a label's is ignored where it
    is not allowed. Points and moves that are on no path get a gradient of exactly 0. Raises ValueError, naming the
    first lattice, if the points hold no path.
    """
    ends = cells.frame_counts + cells.label_counts
    diagonals, places = int(ends.max()), int(cells.label_counts.max()) + 1
    # 1) scatter the moves to anti-diagonals: [N, T + U, U + 1]
    at = (cells.rows, cells.frames + cells.places, cells.places)
    empty = torch.full((len(ends), diagonals, places), _IMPOSSIBLE, dtype=torch.float64, device=ends.device)
    blank_moves = empty.index_put(at, blanks.double()).unbind(1)
    allowed = torch.where(cells.allows_label, labels.double(), _IMPOSSIBLE)
    label_moves = empty.index_put(at, allowed).unbind(1)
    # 2) the probability of reaching each place, from one diagonal to the next: [N, U + 1]
    reached = torch.full_like(empty[:, 0], _IMPOSSIBLE)
    reached[:, 0] = 0.0
    diagonal = [reached]
    for blank_move, label_move in zip(blank_moves, label_moves, strict=True):
        by_label = torch.nn.functional.pad((reached + label_move)[:, :-1], (1, 0), value=_IMPOSSIBLE)
        reached = torch.logaddexp(reached + blank_move, by_label)
        diagonal.append(reached)
    # 3) the point after the last blank
    rows = torch.arange(len(ends), device=ends.device)
    total = torch.stack(diagonal, dim=1)[rows, ends, cells.label_counts]
    without_path = (total < _IMPOSSIBLE / 2).nonzero()
    if len(without_path):
        raise ValueError(f"lattice {int(without_path[0])}: no path through the given points")
    return total


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
