"""Results of a chunk of beam search: newly stable labels, the best hypothesis's unstable suffix, and the n best.

Nothing here synchronizes but `BeamReport.to_host`.
"""

from typing import NamedTuple

import torch

from penstock.decoding.beam.hyps import ABSENT, Hypotheses, TokenLists
from penstock.decoding.beam.memory import BeamStates, BeamUpdate
from penstock.decoding.tensors.tensor_tree import flatten, map_tensors, tree_to_host, unflatten
from penstock.scoring.fusion import Fusion

_EXPECTED_LABELS = 32


class NBest(NamedTuple):
    """Hypotheses of each stream, best first."""

    unstable: TokenLists
    """[B, K, M]: the labels after those reported as stable."""
    scores: torch.Tensor
    """[B, K] float64, log-probability with external and final scores; minus infinity where there is no hypothesis."""
    acoustic_scores: torch.Tensor
    """[B, K] float64, log-probability of the network alone."""
    lengths: torch.Tensor
    """[B, K] int64, labels from the stream's start."""
    places: torch.Tensor
    """[B, K] int64, where each is in its beam."""


class BeamReport(NamedTuple):
    """All results of one chunk of B streams that the host needs; copied there at once."""

    update: BeamUpdate
    forced_blanks: torch.Tensor
    """[B] int64, as in `BeamStates`."""
    pruned_hypotheses: torch.Tensor
    """[B] int64, as in `BeamStates`."""
    best: NBest | None = None
    """Present where some stream has ended."""

    def to_host(self) -> "BeamReport":
        """Copies to the CPU, perhaps with less room for labels; synchronizes.

        One copy, unless a list has more labels than expected: there may be room for hundreds.
        """
        return self if self.pruned_hypotheses.device.type == "cpu" else self.fetched()

    def fetched(self) -> "BeamReport":
        """`to_host` for any device."""
        host = self.copied(_EXPECTED_LABELS)
        return host if host.max_length <= _EXPECTED_LABELS else self.copied(host.max_length)

    def copied(self, labels: int) -> "BeamReport":
        """Copies everything with the first `labels` of each list, as one block."""
        update, best = self.update, self.best
        update = update._replace(stable=update.stable.prefix(labels), unstable=update.unstable.prefix(labels))
        if best is None:
            return BeamReport(*tree_to_host((update, self.forced_blanks, self.pruned_hypotheses)))
        best = best._replace(unstable=best.unstable.prefix(labels))
        return tree_to_host(BeamReport(update, self.forced_blanks, self.pruned_hypotheses, best))

    @property
    def max_length(self) -> int:
        """Labels of the longest list; for a report on the host."""
        lists = [self.update.stable, self.update.unstable, *([] if self.best is None else [self.best.unstable])]
        return max(int(one.lengths.max()) for one in lists)


def n_best(states: BeamStates, fusion: Fusion, is_normalized: bool = True, is_ctc: bool = False) -> NBest:
    """Ranks finished beams, with the final scores of automata (end of sentence, back-off penalties).

    is_normalized: rank by score / (labels + 1), as NeMo does by default; the scores returned are not divided. Of
    hypotheses with the same labels, which may have ended at different frames (TDT), only the best remains; with CTC,
    where they are the paths that end in blank and in a label, it gets the sum of their probabilities.
    """
    hypotheses = states.hypotheses
    # 1) add the final scores: [B, K]
    scores, external = hypotheses.scores, hypotheses.external_scores
    if not fusion.is_empty:
        final = unflatten(fusion.final_scores(flatten(states.context.fusion)), scores.shape[1]).double()
        scores, external = scores + final, external + final
    scores = torch.where(hypotheses.is_live, scores, ABSENT)
    if is_ctc:
        hashes, lengths = hypotheses.hashes, hypotheses.lengths
        is_same = (hashes.unsqueeze(2) == hashes.unsqueeze(1)) & (lengths.unsqueeze(2) == lengths.unsqueeze(1))
        summed = torch.where(is_same, scores.unsqueeze(1), ABSENT).logsumexp(dim=2)
        scores = torch.where(hypotheses.is_live, summed, ABSENT)
    # 2) sort
    order = rank_scores(scores, hypotheses.lengths, is_normalized).argsort(dim=1, descending=True, stable=True)
    scores, external, hashes, lengths = (
        t.gather(1, order) for t in (scores, external, hypotheses.hashes, hypotheses.lengths)
    )
    # 3) remove those with the labels of a better one, and move the others to the front
    is_same = (hashes.unsqueeze(2) == hashes.unsqueeze(1)) & (lengths.unsqueeze(2) == lengths.unsqueeze(1))
    is_repeated = is_same.tril(diagonal=-1).any(dim=2)
    scores = torch.where(is_repeated, ABSENT, scores)
    places = (~(scores > ABSENT)).long().argsort(dim=1, stable=True)
    # 4) gather labels and scores
    chosen = order.gather(1, places)
    room = states.unstable.tokens.labels.shape[2]
    tokens = map_tensors(lambda t: t.gather(1, chosen.unsqueeze(2).expand(-1, -1, room)), states.unstable.tokens)
    return NBest(
        unstable=TokenLists(tokens, states.unstable.lengths.gather(1, chosen)),
        scores=scores.gather(1, places),
        acoustic_scores=(scores - external).gather(1, places),
        lengths=lengths.gather(1, places),
        places=chosen,
    )


def rank_scores(scores: torch.Tensor, lengths: torch.Tensor, is_normalized: bool) -> torch.Tensor:
    """The scores [B, K] that hypotheses are ranked by."""
    return scores / (lengths + 1) if is_normalized else scores


def best_of(hypotheses: Hypotheses, is_normalized: bool) -> torch.Tensor:
    """Index of each stream's best hypothesis, [B, 1] int64."""
    ranked = rank_scores(hypotheses.scores, hypotheses.lengths, is_normalized)
    return torch.where(hypotheses.is_live, ranked, ABSENT).argmax(dim=1, keepdim=True)


class StableSplit(NamedTuple):
    """A beam after its stable labels have been split off."""

    stable: TokenLists
    """[B, M']"""
    unstable: TokenLists
    """[B, K, M]"""
    is_kept: torch.Tensor
    """[B, K] bool, False for absent and pruned hypotheses."""


def split_stable(hypotheses: Hypotheses, paths: TokenLists, best: torch.Tensor, room: int) -> StableSplit:
    """Splits the labels common to all live hypotheses from the rest.

    paths: [B, K, M']; best: [B, 1]; room: M. If an unstable suffix is longer than M, the best hypothesis's excess
    labels become stable, and hypotheses that differ there are pruned.
    """
    is_live = hypotheses.is_live
    # 1) the stable prefix: common to all live hypotheses, or longer where the rest exceeds M labels: [B]
    same = _same_as_best(paths, best)  # [B, K, M']
    common = _leading(same | ~is_live.unsqueeze(2))
    excess = torch.where(is_live, paths.lengths, 0).amax(dim=1) - room
    best_length = paths.lengths.gather(1, best).squeeze(1)
    stable = torch.minimum(torch.maximum(common.amin(dim=1), excess), best_length).clamp(min=0)
    # 2) prune the hypotheses that differ in it, or do not fit: [B, K]
    agrees = _leading(same) >= stable.unsqueeze(1)
    is_kept = is_live & agrees & (paths.lengths - stable.unsqueeze(1) <= room)
    # 3) the stable labels: the best hypothesis's path, of which `stable` are valid: [B, M']
    longest = same.shape[2]
    best_path = map_tensors(lambda t: t.gather(1, best.unsqueeze(2).expand(-1, -1, longest)).squeeze(1), paths.tokens)
    # 4) the unstable suffixes, moved to the front: [B, K, M]
    lengths = torch.where(is_kept, paths.lengths - stable.unsqueeze(1), 0)
    padded = map_tensors(lambda t: torch.nn.functional.pad(t, (0, max(0, room - longest))), paths.tokens)
    places = stable.unsqueeze(1) + torch.arange(room, device=stable.device)  # [B, M]
    places = places.clamp(max=max(longest, room) - 1).unsqueeze(1).expand(-1, is_live.shape[1], -1)
    # Zeros after the end, so that a beam that did not move keeps its exact bits.
    is_token = torch.arange(room, device=stable.device) < lengths.unsqueeze(2)
    suffix = map_tensors(lambda t: torch.where(is_token, t.gather(2, places), 0), padded)
    return StableSplit(TokenLists(best_path, stable), TokenLists(suffix, lengths), is_kept)


def _same_as_best(paths: TokenLists, best: torch.Tensor) -> torch.Tensor:
    """[B, K, M'] bool, True where a hypothesis and the best one have the same label with the same times."""
    tokens = paths.tokens
    longest = tokens.labels.shape[2]
    places = torch.arange(longest, device=best.device)
    lengths = torch.minimum(paths.lengths, paths.lengths.gather(1, best))
    same = places < lengths.unsqueeze(2)
    for field in (tokens.labels, tokens.timestamps, tokens.durations):
        same = same & (field == field.gather(1, best.unsqueeze(2).expand(-1, -1, longest)))
    return same


def _leading(is_true: torch.Tensor) -> torch.Tensor:
    """Counts the leading True values: [B, K, M'] bool -> [B, K] int64."""
    return is_true.long().cumprod(dim=2).sum(dim=2)
