"""Greedy and beam search as the decoder stage sees them: slots and frames in, tokens out. A stream is in one lane."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from penstock.decoding.batched_hyps import BatchedHyps
from penstock.decoding.beam_results import NBest, TokenLists
from penstock.decoding.beam_search import BeamAlgorithm, BeamSearch
from penstock.decoding.beam_sizes import BeamSizes
from penstock.decoding.beam_state import BeamState
from penstock.decoding.captured_beam_search import CapturedBeamSearch, beam_with_driver
from penstock.decoding.captured_search import CapturedSearch, with_driver
from penstock.decoding.greedy_search import GreedySearch
from penstock.decoding.greedy_state import GreedyState
from penstock.decoding.label_looping import LabelLooping
from penstock.decoding.networks import TransducerNetwork
from penstock.decoding.rows import map_rows
from penstock.graphs.driver import Driver
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


class Driving(NamedTuple):
    """How searches are run."""

    driver: Driver
    max_batch: int
    """Streams at once that graphs are captured for."""
    encoder_frames: int
    """Of a chunk."""

    def drive(self, search: GreedySearch) -> GreedySearch | CapturedSearch:
        """The search, ready to be called with any chunk."""
        return with_driver(search, self.driver, self.max_batch, self.encoder_frames)

    def drive_beam(self, search: BeamSearch, sizes: BeamSizes) -> BeamSearch | CapturedBeamSearch:
        """The same of a beam search, for states of these sizes."""
        return beam_with_driver(search, self.driver, self.max_batch, self.encoder_frames, sizes)


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
    """Label-looping. A batch in which nobody chose external scores does not pay for them."""

    needs_frames = True

    def __init__(self, network: TransducerNetwork, slots: int, fusion: StreamFusion, driving: Driving):
        self._plain = driving.drive(LabelLooping(network))
        self._fused = driving.drive(LabelLooping(network, fusion=fusion.fusion))
        self._fusion = fusion
        self._state = GreedyState(network, slots)
        self._device = network.device

    def open(self, slots: Sequence[int], options: Sequence[StreamOptions]) -> None:
        """Hypotheses without labels."""
        self._state.reset(torch.tensor(slots, device=self._device), self._fusion.start_rows(slots))

    def decode(self, chunk: Chunk) -> list[Decoded]:
        """Every label found is stable."""
        slots = torch.tensor(chunk.slots, device=self._device)
        search = self._fused if self._fusion.is_used_by(chunk.slots) else self._plain
        hyps, rows = search.decode(chunk.frame_rows, chunk.lengths, self._state.gather(slots))
        self._state.scatter(slots, rows)
        return [Decoded(tokens, [], []) for tokens in _greedy_tokens(hyps)]


class BeamLane(DecoderLane):
    """ALSD++ or AES++. A batch in which nobody chose external scores does not pay for them."""

    needs_frames = False

    def __init__(
        self,
        network: TransducerNetwork,
        algorithm: BeamAlgorithm,
        state: BeamState,
        fusion: StreamFusion,
        drive: Callable[[BeamSearch], BeamSearch | CapturedBeamSearch],
    ):
        """state: may be another beam lane's too, since a stream is in one lane only."""
        self._plain = drive(BeamSearch(network, algorithm))
        self._fused = drive(BeamSearch(network, algorithm, fusion.fusion))
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

    def decode(self, chunk: Chunk) -> list[Decoded]:
        """What all hypotheses of a stream share is stable; at a segment's end the best one with all scores wins."""
        slots = torch.tensor(chunk.slots, device=self._device)
        is_end = torch.tensor(chunk.is_end, device=self._device)
        search = self._fused if self._fusion.is_used_by(chunk.slots) else self._plain
        update, rows = search.decode(chunk.frame_rows, chunk.lengths, is_end, self._state.gather(slots))
        self._state.scatter(slots, rows)
        stable, unstable = _tokens(update.stable), _tokens(update.tail)
        alternatives: list[list[TokenAlternative]] = [[] for _ in chunk.slots]
        if any(chunk.is_end):
            alternatives = _alternatives(search.n_best(rows))
        found = []
        for row, slot in enumerate(chunk.slots):
            if not chunk.is_end[row]:
                found.append(Decoded(stable[row], unstable[row], []))
                continue
            best = alternatives[row][0].unstable
            found.append(Decoded(stable[row], best, alternatives[row][: self._n_best[slot]]))
        return found


def _greedy_tokens(hyps: BatchedHyps) -> list[list[Token]]:
    host = hyps.to_host()
    return _rows_of_tokens((host.labels, host.timestamps, host.durations, host.scores), host.lengths)


def _tokens(lists: TokenLists) -> list[list[Token]]:
    """lists: [B, M]"""
    tokens, lengths = lists.to_host()
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
    """Those of each stream that exist; always at least one."""
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
