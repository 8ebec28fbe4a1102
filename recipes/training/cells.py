"""The points of Transducer lattices that a loss computes: all of them, or a band around an alignment.

A lattice has a point (t, u) for each encoder frame t and each number of labels u emitted before, its place. All points
of N lattices are one packed list, so that a head computes its outputs for these points alone.
"""

from typing import NamedTuple

import torch


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


def band_cells(
    frame_counts: torch.Tensor, label_counts: torch.Tensor, times: torch.Tensor, left: int, right: int
) -> Cells:
    """The points of the paths that emit label u at a frame in times[u] - left .. times[u] + right.

    Alignment restriction (Mahadeokar et al., SLT 2021). frame_counts, label_counts: [N] int64; times: [N, U] int64,
    the encoder frame of each label, ascending; left, right: encoder frames.
    """
    frame, place = _axes(frame_counts, label_counts)
    last = frame_counts.view(-1, 1) - 1
    # 1) the frames in which each label may be emitted, [N, U]
    times = times[:, : place.numel() - 1]
    is_label = torch.arange(times.shape[1], device=times.device) < label_counts.view(-1, 1)
    earliest = torch.where(is_label, times - left, 0)
    latest = torch.where(is_label, torch.minimum(times + right, last), last)
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
