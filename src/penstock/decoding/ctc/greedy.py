"""Greedy CTC search: the best label of each frame, repeats collapsed, blanks removed (Graves et al., ICML 2006, 3.2).

A token lasts as long as its label repeats. The one that a chunk ends with stays open: the next chunk may repeat it.
"""

from typing import NamedTuple

import torch

from penstock.decoding.ctc.state import CtcStates


class CtcTokens(NamedTuple):
    """Lists of tokens of B streams with room for M each; only entries below `lengths` are valid."""

    labels: torch.Tensor
    """[B, M] int64"""
    timestamps: torch.Tensor
    """[B, M] int64, encoder frame of the label's first occurrence, from the stream's start."""
    durations: torch.Tensor
    """[B, M] int64, encoder frames that the label lasts."""
    scores: torch.Tensor
    """[B, M] log-probability of the label at its first frame."""
    lengths: torch.Tensor
    """[B] int64"""


class CtcUpdate(NamedTuple):
    """Tokens of one chunk of B streams."""

    closed: CtcTokens
    """[B, T]: tokens that ended in the chunk."""
    open: CtcTokens
    """[B, 1]: the token of the last frame, which may go on; none after a blank."""


@torch.inference_mode()
def decode_greedily(log_probs: torch.Tensor, lengths: torch.Tensor, states: CtcStates) -> tuple[CtcUpdate, CtcStates]:
    """Decodes one chunk of B streams; does not synchronize.

    log_probs: [B, T, V + 1], T may be 0; lengths: [B] int64 valid frames, 0 .. T; states: before the chunk, not
    modified. Returns the tokens and the states after. A stream of length 0 keeps its state.
    """
    blank, frames = log_probs.shape[2] - 1, log_probs.shape[1]
    # 1) the best label of each frame after that of the frame before; after the end, the last one goes on: [B, 1 + T]
    best, labels = log_probs.max(dim=2)
    labels = torch.cat([states.last_labels.unsqueeze(1), labels], dim=1)
    scores = torch.cat([states.scores.unsqueeze(1), best], dim=1)
    places = torch.arange(frames + 1, device=lengths.device)
    labels = labels.gather(1, torch.minimum(places, lengths.unsqueeze(1)))
    # 2) where the run of equal labels of each column begins; column 0 goes on what earlier chunks began: [B, 1 + T]
    is_new = torch.nn.functional.pad(labels[:, 1:] != labels[:, :-1], (1, 0))
    begins = torch.where(is_new, places, 0).cummax(dim=1).values
    first_frames = states.frames_seen.unsqueeze(1) + begins - 1
    first_frames = torch.where(begins == 0, states.first_frames.unsqueeze(1), first_frames)
    scores = scores.gather(1, begins)
    # 3) closed tokens: a label before each new run, moved to the front: [B, T]
    is_closed = is_new[:, 1:] & (labels[:, :-1] != blank)
    ends = states.frames_seen.unsqueeze(1) + places[:-1]
    order = (~is_closed).long().argsort(dim=1, stable=True)
    closed = CtcTokens(
        labels=labels.gather(1, order),
        timestamps=first_frames.gather(1, order),
        durations=(ends - first_frames[:, :-1]).gather(1, order),
        scores=scores.gather(1, order),
        lengths=is_closed.sum(dim=1),
    )
    # 4) the state is the last column, with the open token
    after = CtcStates(labels[:, -1], first_frames[:, -1], scores[:, -1], states.frames_seen + lengths)
    still_open = CtcTokens(
        labels=after.last_labels.unsqueeze(1),
        timestamps=after.first_frames.unsqueeze(1),
        durations=(after.frames_seen - after.first_frames).unsqueeze(1),
        scores=after.scores.unsqueeze(1),
        lengths=(after.last_labels != blank).long(),
    )
    return CtcUpdate(closed, still_open), after
