"""Greedy and beam search as the decoder stage sees them: slots and frames in, tokens out. A stream is in one lane."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from penstock.decoding.batched_hyps import BatchedHyps
from penstock.decoding.beam_report import BeamReport
from penstock.decoding.beam_results import NBest, TokenLists
from penstock.decoding.beam_state import BeamState
from penstock.decoding.greedy_state import GreedyState
from penstock.decoding.host_copy import copy_to_device
from penstock.decoding.rows import map_rows
from penstock.stages.beam_losses import BeamLossCount, BeamLosses
from penstock.stages.decoder_searches import SearchMaker
from penstock.stages.stream_fusion import StreamFusion
from penstock.stream_options import StreamOptions
from penstock.transcript import Token


class Chunk(NamedTuple):
    """New encoder frames of B streams."""

    slots: list[int]
    frame_rows: torch.Tensor
    """[B, T, J] from `project_encoder`; T may be 0."""
    lengths: torch.Tensor
    """[B] int64"""
    is_end: list[bool]
    """Whether it is the last of its segment."""


class TokenAlternative(NamedTuple):
    """One of the n best token sequences of a whole segment."""

    unstable: list[Token]
    """What follows the tokens reported as stable."""
    score: float
    """Log-probability with language model and boosting."""
    acoustic_score: float
    """Of the network alone."""


@dataclass(frozen=True)
class Decoded:
    """What a chunk brought for one stream."""

    stable: list[Token]
    """Follow those of earlier chunks and will not change."""
    unstable: list[Token]
    """What the best hypothesis has beyond; may change."""
    alternatives: list[TokenAlternative]
    """At the end of a segment of a stream that asked for them, best first."""


class DecoderLane(ABC):
    """One search with the states of its streams."""

    needs_frames: bool
    """Whether a chunk without frames can be left out, also at the end."""

    @abstractmethod
    def open(self, slots: Sequence[int], options: Sequence[StreamOptions]) -> None:
        """Makes the slots new streams, or lets their streams begin a segment."""

    @abstractmethod
    def decode(self, chunk: Chunk) -> list[Decoded]:
        """Takes every stream of the chunk on."""


class GreedyLane(DecoderLane):
    """Label-looping. A batch in which nobody chose external scores does not pay for them, and one whose phrase lists
    are all of the cheaper form not for the other.
    """

    needs_frames = True

    def __init__(self, searches: SearchMaker, slots: int, fusion: StreamFusion):
        self._searches = [searches.greedy(), *map(searches.greedy, fusion.fusions)]
        self._fusion = fusion
        self._state = GreedyState(searches.network, slots)
        self._device = searches.network.device

    def open(self, slots: Sequence[int], options: Sequence[StreamOptions]) -> None:
        """Hypotheses without labels."""
        self._state.reset(torch.tensor(slots, device=self._device), self._fusion.start_rows(slots))

    def decode(self, chunk: Chunk) -> list[Decoded]:
        """Every label found is stable."""
        slots = copy_to_device(chunk.slots, torch.int64, self._device)
        search = self._searches[self._fusion.needed_by(chunk.slots)]
        hyps, rows = search.decode(chunk.frame_rows, chunk.lengths, self._state.gather(slots))
        self._state.scatter(slots, rows)
        return [Decoded(tokens, [], []) for tokens in _greedy_tokens(hyps)]


class BeamLane(DecoderLane):
    """ALSD++ or AES++. A batch in which nobody chose external scores does not pay for them."""

    needs_frames = False

    def __init__(self, name: str, searches: SearchMaker, state: BeamState, fusion: StreamFusion):
        """state: may be another beam lane's too, since a stream is in one lane only."""
        # The form of phrase lists costs a beam little, and every search more is captured at load.
        self._plain, self._fused = searches.beam(name), searches.beam(name, fusion.fusions[-1])
        self.losses = BeamLossCount(name, state.slots)
        self._fusion = fusion
        self._state = state
        self._n_best = [0] * state.slots
        self._device = state.device

    def open(self, slots: Sequence[int], options: Sequence[StreamOptions]) -> None:
        """Beams of one empty hypothesis."""
        sizes = torch.tensor([o.beam_size for o in options], dtype=torch.int64, device=self._device)
        self._state.reset(torch.tensor(slots, device=self._device), sizes, self._fusion.start_rows(slots))
        for slot, chosen in zip(slots, options, strict=True):
            self._n_best[slot] = chosen.n_best
        self.losses.begin(slots)

    def decode(self, chunk: Chunk) -> list[Decoded]:
        """What all hypotheses of a stream share is stable; at a segment's end the best one with all scores wins."""
        slots = copy_to_device(chunk.slots, torch.int64, self._device)
        is_end = copy_to_device(chunk.is_end, torch.bool, self._device)
        search = self._fused if self._fusion.needed_by(chunk.slots) else self._plain
        update, rows = search.decode(chunk.frame_rows, chunk.lengths, is_end, self._state.gather(slots))
        self._state.scatter(slots, rows)
        best = search.n_best(rows) if any(chunk.is_end) else None
        return self._tell(chunk, BeamReport(update, rows.forced_on, rows.dropped, best).to_host())

    def _tell(self, chunk: Chunk, report: BeamReport) -> list[Decoded]:
        """report: on the host."""
        stable, unstable = _tokens(report.update.stable), _tokens(report.update.tail)
        alternatives = [] if report.best is None else _alternatives(report.best)
        losses = map(BeamLosses, report.forced_on.tolist(), report.dropped.tolist())
        found = []
        for row, (slot, is_end, lost) in enumerate(zip(chunk.slots, chunk.is_end, losses, strict=True)):
            self.losses.note(slot, lost, is_end)
            if is_end:
                best = alternatives[row]
                found.append(Decoded(stable[row], best[0].unstable, best[: self._n_best[slot]]))
            else:
                found.append(Decoded(stable[row], unstable[row], []))
        return found


def _greedy_tokens(hyps: BatchedHyps) -> list[list[Token]]:
    host = hyps.to_host()
    return _rows_of_tokens((host.labels, host.timestamps, host.durations, host.scores), host.lengths)


def _tokens(lists: TokenLists) -> list[list[Token]]:
    """lists: [B, M] on the host"""
    tokens, lengths = lists
    return _rows_of_tokens((tokens.labels, tokens.timestamps, tokens.durations, tokens.acoustic_scores), lengths)


def _rows_of_tokens(fields: tuple[torch.Tensor, ...], lengths: torch.Tensor) -> list[list[Token]]:
    """fields: a token's, each [B, M] on the host; lengths: [B]"""
    counts = lengths.tolist()
    longest = max(counts)
    columns = [field[:, :longest].tolist() for field in fields]
    return [
        [Token(*values) for values in zip(*(column[row][:count] for column in columns), strict=True)]
        for row, count in enumerate(counts)
    ]


def _alternatives(best: NBest) -> list[list[TokenAlternative]]:
    """Those of each stream that exist; always at least one. best: on the host."""
    batch, beam_size = best.scores.shape
    tokens = _tokens(map_rows(lambda t: t.flatten(0, 1), best.tails))
    scores, acoustic = best.scores.tolist(), best.acoustic_scores.tolist()
    return [
        [
            TokenAlternative(tokens[row * beam_size + k], scores[row][k], acoustic[row][k])
            for k in range(beam_size)
            if k == 0 or scores[row][k] > float("-inf")
        ]
        for row in range(batch)
    ]
