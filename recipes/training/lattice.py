"""The probability of labels as the sum over all alignments in a set of lattice points (Graves, arXiv 1211.3711).

The recursion goes over anti-diagonals: t + u grows by one with every label and every blank. Unlike the recursion over
frames (`losses`), in which the labels of a frame are cumulated, it can exclude single moves; it has no durations.
"""

import torch

from recipes.training.cells import Cells

_IMPOSSIBLE = -1e30


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
