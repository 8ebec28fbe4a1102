"""What is told of a beam: labels that no hypothesis disputes any more, the best one's rest, and the n best.

Knows no search. Nothing here synchronises.
"""

from typing import NamedTuple

import torch

from penstock.decoding.beam_hyps import ABSENT, BeamPaths, HypothesisRows, TokenRows
from penstock.decoding.beam_state import BeamRows
from penstock.decoding.rows import flatten_rows, map_rows, unflatten_rows
from penstock.fusion.fusion import Fusion


class TokenLists(NamedTuple):
    """Labels of some rows in order."""

    tokens: TokenRows
    """[..., M]; only what is below `lengths` means anything."""
    lengths: torch.Tensor
    """[...] int64"""

    def first(self, labels: int) -> "TokenLists":
        """The first `labels` of each row; the lengths stay what they are."""
        return TokenLists(map_rows(lambda t: t[..., :labels], self.tokens), self.lengths)


class BeamUpdate(NamedTuple):
    """What one chunk brought for each of B streams."""

    stable: TokenLists
    """[B, M]: follow those reported as stable before, and will not change."""
    tail: TokenLists
    """[B, M]: what the best hypothesis has beyond; may change."""
    lag_encoder_frames: torch.Tensor
    """[B] int64, how far the slowest hypothesis is behind the last frame seen; 0 at the end."""


class NBest(NamedTuple):
    """Hypotheses of each stream, best first."""

    tails: TokenLists
    """[B, K, M]: what follows the labels reported as stable."""
    scores: torch.Tensor
    """[B, K] float64, log-probability with everything external and with what ending adds; minus infinity: none."""
    acoustic_scores: torch.Tensor
    """[B, K] float64, of the network alone."""
    lengths: torch.Tensor
    """[B, K] int64, labels from the stream's start."""


def n_best(rows: BeamRows, fusion: Fusion, is_normalised: bool = True) -> NBest:
    """Ranks finished beams.

    What ending adds (end of sentence, bonuses paid back) counts. is_normalised: rank by score / (labels + 1), as NeMo
    does by default; the scores returned are not divided. Of hypotheses with the same labels (a TDT jump may end at
    different frames) only the best remains.
    """
    hypotheses = rows.hypotheses
    scores, external = hypotheses.scores, hypotheses.external_scores
    if not fusion.is_empty:
        final = unflatten_rows(fusion.final_scores(flatten_rows(rows.context.fusion)), scores.shape[1]).double()
        scores, external = scores + final, external + final
    scores = torch.where(hypotheses.is_live, scores, ABSENT)
    order = rank_scores(scores, hypotheses.lengths, is_normalised).argsort(dim=1, descending=True, stable=True)
    scores, external, hashes, lengths = (
        t.gather(1, order) for t in (scores, external, hypotheses.hashes, hypotheses.lengths)
    )
    is_same = (hashes.unsqueeze(2) == hashes.unsqueeze(1)) & (lengths.unsqueeze(2) == lengths.unsqueeze(1))
    is_repeated = is_same.tril(diagonal=-1).any(dim=2)  # equals one ranked before
    scores = torch.where(is_repeated, ABSENT, scores)
    places = (~(scores > ABSENT)).long().argsort(dim=1, stable=True)
    chosen = order.gather(1, places)
    longest = rows.tail.tokens.labels.shape[2]
    tokens = map_rows(lambda t: t.gather(1, chosen.unsqueeze(2).expand(-1, -1, longest)), rows.tail.tokens)
    return NBest(
        tails=TokenLists(tokens, rows.tail.lengths.gather(1, chosen)),
        scores=scores.gather(1, places),
        acoustic_scores=(scores - external).gather(1, places),
        lengths=lengths.gather(1, places),
    )


def rank_scores(scores: torch.Tensor, lengths: torch.Tensor, is_normalised: bool) -> torch.Tensor:
    """What hypotheses are ranked by, [B, K]."""
    return scores / (lengths + 1) if is_normalised else scores


def best_of(hypotheses: HypothesisRows, is_normalised: bool) -> torch.Tensor:
    """[B, 1] int64, each stream's best hypothesis so far."""
    ranked = rank_scores(hypotheses.scores, hypotheses.lengths, is_normalised)
    return torch.where(hypotheses.is_live, ranked, ABSENT).argmax(dim=1, keepdim=True)


class Settled(NamedTuple):
    """A beam after its stable labels have been split off."""

    stable: TokenLists
    """[B, M']"""
    tail: BeamPaths
    """tokens [B, K, M]"""
    is_kept: torch.Tensor
    """[B, K] bool, False for hypotheses that had to be dropped."""


def settle(hypotheses: HypothesisRows, paths: BeamPaths, best: torch.Tensor, room: int) -> Settled:
    """Splits labels common to all live hypotheses from the rest.

    paths: [B, K, M']; best: [B, 1]; room: M, labels that a tail may hold. Where a tail is longer, what exceeds it is
    taken from the best hypothesis as stable, and hypotheses that differ there are dropped.
    """
    is_live = hypotheses.is_live
    same = _same_as_best(paths, best)  # [B, K, M']
    common = _leading(same | ~is_live.unsqueeze(2))
    excess = torch.where(is_live, paths.lengths, 0).amax(dim=1) - room
    best_length = paths.lengths.gather(1, best).squeeze(1)
    stable = torch.minimum(torch.maximum(common.amin(dim=1), excess), best_length).clamp(min=0)  # [B]
    agrees = _leading(same) >= stable.unsqueeze(1)
    is_kept = is_live & agrees & (paths.lengths - stable.unsqueeze(1) <= room)
    longest = same.shape[2]
    first = map_rows(lambda t: t.gather(1, best.unsqueeze(2).expand(-1, -1, longest)).squeeze(1), paths.tokens)
    lengths = torch.where(is_kept, paths.lengths - stable.unsqueeze(1), 0)
    padded = map_rows(lambda t: torch.nn.functional.pad(t, (0, max(0, room - longest))), paths.tokens)
    places = stable.unsqueeze(1) + torch.arange(room, device=stable.device)  # [B, M]
    places = places.clamp(max=max(longest, room) - 1).unsqueeze(1).expand(-1, is_live.shape[1], -1)
    # Zeros behind the end: a beam that did not move is the same to the last bit.
    is_token = torch.arange(room, device=stable.device) < lengths.unsqueeze(2)
    tail = map_rows(lambda t: torch.where(is_token, t.gather(2, places), 0), padded)
    return Settled(TokenLists(first, stable), BeamPaths(tail, lengths), is_kept)


def _same_as_best(paths: BeamPaths, best: torch.Tensor) -> torch.Tensor:
    """[B, K, M'] bool, True where both have a label, and it and its time are the same."""
    tokens = paths.tokens
    longest = tokens.labels.shape[2]
    places = torch.arange(longest, device=best.device)
    lengths = torch.minimum(paths.lengths, paths.lengths.gather(1, best))
    same = places < lengths.unsqueeze(2)
    for field in (tokens.labels, tokens.timestamps, tokens.durations):
        same = same & (field == field.gather(1, best.unsqueeze(2).expand(-1, -1, longest)))
    return same


def _leading(is_true: torch.Tensor) -> torch.Tensor:
    """[B, K, M'] bool -> [B, K] int64, how many of the first hold."""
    return is_true.long().cumprod(dim=2).sum(dim=2)
