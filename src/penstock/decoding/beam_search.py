"""Beam search over chunks: drives ALSD++ or AES++ so that any chunking gives exactly the whole utterance's beam.

A stream's beam takes a step only where that step would be the same with all its frames at hand; otherwise the whole
beam waits for the next chunk, and the encoder rows from its slowest hypothesis on are carried along. Knows no slots.
"""

import enum
from functools import partial

import torch

from penstock.decoding.aes import AesSearch
from penstock.decoding.alsd import AlsdSearch
from penstock.decoding.beam_expansion import Expander
from penstock.decoding.beam_hyps import ABSENT, BatchedBeamHyps, BeamPaths
from penstock.decoding.beam_results import BeamUpdate, NBest, TokenLists, best_of, n_best, settle
from penstock.decoding.beam_sizes import AesLimits
from penstock.decoding.beam_state import BeamRows
from penstock.decoding.beam_work import CAN_STEP, IS_BEHIND, BeamWork
from penstock.decoding.beam_workspace import BeamWorkspace
from penstock.decoding.networks import TransducerNetwork
from penstock.decoding.rows import map_rows
from penstock.fusion.blank_scoring import FusionStrategy
from penstock.fusion.fusion import Fusion
from penstock.graphs.program import Program, Step, While, run_eagerly


class BeamAlgorithm(enum.Enum):
    """Which search takes the steps."""

    ALSD = "alsd"
    AES = "aes"


class BeamSearch:
    """Beam search; `decode` drives it eagerly."""

    def __init__(
        self,
        network: TransducerNetwork,
        algorithm: BeamAlgorithm = BeamAlgorithm.ALSD,
        fusion: Fusion | None = None,
        strategy: FusionStrategy | None = None,
        max_symbols: int | None = None,
        aes_limits: AesLimits | None = None,
        is_normalised: bool = True,
    ):
        """max_symbols: labels at one frame in ALSD++, as the checkpoint says by default; is_normalised: see `n_best`.

        Streams use the language model by a weight above 0 in their `FusionRows`; without one it must be 0.
        """
        self._fusion = fusion or Fusion()
        expander = Expander(network.config, self._fusion, strategy or FusionStrategy(), network.device)
        self.search = (
            AlsdSearch(network, expander, max_symbols or network.config.max_symbols)
            if algorithm is BeamAlgorithm.ALSD
            else AesSearch(network, expander, aes_limits)
        )
        self.network = network
        self._is_normalised = is_normalised

    @torch.inference_mode()
    def decode(
        self, frame_rows: torch.Tensor, lengths: torch.Tensor, is_end: torch.Tensor, rows: BeamRows
    ) -> tuple[BeamUpdate, BeamRows]:
        """Decodes one chunk of B streams.

        frame_rows: [B, T, J] from `project_encoder`, T may be 0; lengths: [B] int64 valid frames, 0 .. T; is_end: [B]
        bool, True lets the hypotheses finish. Returns what it brought and the state after; `rows` is not modified. A
        row of length 0 that does not end keeps its beam. Synchronises once a step and once for the longest path.
        """
        work = self._work(frame_rows, lengths, is_end, rows)
        run_eagerly(Program(work.flags, self._steps(work, rows)))
        paths = work.hyps.trace_back(int(work.hyps.stored_lengths.max()))
        return self._finish(work, lengths, rows, paths)

    def program(self, place: BeamWorkspace) -> Program:
        """The same over tensors that never move, the result included; no step synchronises."""
        steps = self._steps(place.work, place.rows)
        return Program(place.work.flags, (place.begin, *steps, partial(self._finish_in_place, place)))

    def n_best(self, rows: BeamRows) -> NBest:
        """The hypotheses of streams that have ended."""
        return n_best(rows, self._fusion, self._is_normalised)

    def _steps(self, work: BeamWork, rows: BeamRows) -> tuple[Step | While, ...]:
        """Moves every stream on as far as it can go, then those hypotheses whose frames will not be carried."""
        carried = rows.carried_rows.shape[1]
        look, look_behind = partial(self._look, work), partial(self._look_behind, work, carried)
        return (
            look,
            While(CAN_STEP, (partial(self._step, work), look)),
            look_behind,
            While(IS_BEHIND, (partial(self._force_on, work), look_behind)),
        )

    def _look(self, work: BeamWork) -> None:
        work.mark_unfinished()
        self.search.look(work)
        torch.any(work.can_step, dim=0, out=work.any_can_step)

    def _step(self, work: BeamWork) -> None:
        work.hyps.make_room()
        self.search.step(work)

    def _look_behind(self, work: BeamWork, carried: int) -> None:
        work.mark_unfinished()
        first_kept = (work.end_frames - carried).unsqueeze(1)
        torch.logical_and(work.is_unfinished, work.hyps.rows.next_frames < first_kept, out=work.is_behind)
        torch.any(work.is_behind, out=work.any_is_behind)

    def _force_on(self, work: BeamWork) -> None:
        self.search.moves.force_on(work, work.is_behind)
        work.forced += work.is_behind.sum(dim=1)

    def _work(self, frame_rows: torch.Tensor, lengths: torch.Tensor, is_end: torch.Tensor, rows: BeamRows) -> BeamWork:
        """Sets a chunk's work up, with storage that may grow."""
        spare_columns = 2 * frame_rows.shape[1] + 1  # a label and a blank at each frame, and one to write to
        return BeamWork(
            hyps=BatchedBeamHyps(rows.hypotheses, rows.tail, spare_columns, self.network.blank),
            context=map_rows(torch.clone, rows.context),
            frame_rows=torch.cat([rows.carried_rows, frame_rows], dim=1),
            first_frames=rows.frames_seen - rows.carried_rows.shape[1],
            end_frames=rows.frames_seen + lengths,
            is_end=is_end,
            beam_sizes=rows.beam_sizes,
        )

    def _finish_in_place(self, place: BeamWorkspace) -> None:
        paths = place.work.hyps.trace_back_within(place.most_labels)
        place.keep(*self._finish(place.work, place.lengths, place.rows, paths))

    def _finish(
        self, work: BeamWork, lengths: torch.Tensor, rows: BeamRows, paths: BeamPaths
    ) -> tuple[BeamUpdate, BeamRows]:
        """Splits the stable labels off and packs the state up; paths: of all hypotheses."""
        hypotheses = work.hyps.rows
        room = rows.tail.tokens.labels.shape[2]
        best = best_of(hypotheses, self._is_normalised)
        settled = settle(hypotheses, paths, best, room)
        is_dropped = hypotheses.is_live & ~settled.is_kept
        hypotheses = hypotheses._replace(scores=torch.where(settled.is_kept, hypotheses.scores, ABSENT))
        slowest = torch.where(work.is_unfinished, hypotheses.next_frames, work.end_frames.unsqueeze(1)).amin(dim=1)
        update = BeamUpdate(
            stable=settled.stable,
            tail=TokenLists(
                map_rows(lambda t: t.gather(1, best.unsqueeze(2).expand(-1, -1, room)).squeeze(1), settled.tail.tokens),
                settled.tail.lengths.gather(1, best).squeeze(1),
            ),
            lag_encoder_frames=work.end_frames - slowest,
        )
        carried = rows.carried_rows.shape[1]
        newest = lengths.unsqueeze(1) + torch.arange(carried, device=lengths.device)
        newest = newest.unsqueeze(2).expand(-1, -1, work.frame_rows.shape[2])
        return update, rows._replace(
            hypotheses=hypotheses,
            tail=settled.tail,
            context=work.context,
            carried_rows=work.frame_rows.gather(1, newest),
            frames_seen=work.end_frames,
            forced_on=rows.forced_on + work.forced,
            dropped=rows.dropped + is_dropped.sum(dim=1),
        )
