"""BeamSearch: drives ALSD++, AES++ or CTC search over chunks so that any chunking gives the whole utterance's beam.

A Transducer's beam takes a step only if that step would be the same with all its frames present. Otherwise the whole
beam waits for the next chunk, and the projected frames from its slowest hypothesis on are carried along. A CTC beam
takes exactly one step per frame, so it neither waits nor loops. CapturedBeamSearch runs the search by a driver, as CUDA
graphs need it, for bucketed batch sizes.
"""

import enum
from functools import partial

import torch

from penstock.decoding.beam.aes import AesSearch
from penstock.decoding.beam.alsd import AlsdSearch
from penstock.decoding.beam.ctc import CtcSearch
from penstock.decoding.beam.expansion import Expander
from penstock.decoding.beam.hyps import ABSENT, BatchedBeamHyps, TokenLists
from penstock.decoding.beam.memory import BeamBuffers, BeamStates, BeamUpdate, BeamWorkspace
from penstock.decoding.beam.results import NBest, best_of, n_best, split_stable
from penstock.decoding.beam.scratch import CAN_STEP, IS_BEHIND, BeamNetwork, BeamScratch
from penstock.decoding.ctc import CtcHead
from penstock.decoding.sizes import AesLimits, BeamSizes
from penstock.decoding.tensors.graph_buckets import Buckets, split_chunk
from penstock.decoding.tensors.tensor_tree import first, join_rows, map_tensors, rows_at
from penstock.graphs.program import Driver, Program, Step, While, run_eagerly
from penstock.scoring.fusion import Fusion


class BeamAlgorithm(enum.Enum):
    """The search that takes a Transducer's steps."""

    ALSD = "alsd"
    AES = "aes"


class BeamSearch:
    """Beam search over chunks; `decode` runs it eagerly."""

    def __init__(
        self,
        network: BeamNetwork,
        algorithm: BeamAlgorithm = BeamAlgorithm.ALSD,
        fusion: Fusion | None = None,
        max_symbols: int | None = None,
        aes_limits: AesLimits | None = None,
        is_normalized: bool = True,
        label_bonus: float = 0.0,
    ):
        """max_symbols: labels at one frame in ALSD++, by default as in the checkpoint; is_normalized: see `n_best`.

        A stream uses the language model if its weight in `FusionStates` is above 0; without a model it must be 0. A
        CTC head has one algorithm, which takes the fusion and label_bonus alone, nats that the language model gives to
        each label; hypotheses are ranked by their scores.
        """
        self._fusion = fusion or Fusion()
        self._is_ctc = isinstance(network, CtcHead)
        self.algorithm: AlsdSearch | AesSearch | CtcSearch
        if isinstance(network, CtcHead):
            self.algorithm = CtcSearch(network, self._fusion, label_bonus)
        else:
            expander = Expander(network.config, self._fusion, network.device)
            self.algorithm = (
                AlsdSearch(network, expander, max_symbols or network.config.max_symbols)
                if algorithm is BeamAlgorithm.ALSD
                else AesSearch(network, expander, aes_limits)
            )
        self.network = network
        self._is_normalized = is_normalized and not self._is_ctc

    @torch.inference_mode()
    def decode(
        self, projected_frames: torch.Tensor, lengths: torch.Tensor, is_end: torch.Tensor, states: BeamStates
    ) -> tuple[BeamUpdate, BeamStates]:
        """Decodes one chunk of B streams.

        projected_frames: [B, T, J] from `project_encoder`, T may be 0; lengths: [B] int64 valid frames, 0 .. T; is_end:
        [B] bool, True lets the hypotheses finish; states: before the chunk, not modified. Returns the results and the
        states after. A stream of length 0 that does not end keeps its beam. Synchronizes once per step and once more
        for the length of the longest path.
        """
        scratch = self._scratch(projected_frames, lengths, is_end, states)
        run_eagerly(Program(scratch.flags, self._steps(scratch, states)))
        paths = scratch.hyps.trace_back(int(scratch.hyps.stored_lengths.max()))
        return self._finish(scratch, lengths, states, paths)

    def program(self, workspace: BeamWorkspace) -> Program:
        """`decode` over tensors at fixed addresses, results included; no step synchronizes."""
        steps = self._steps(workspace.scratch, workspace.states)
        return Program(workspace.scratch.flags, (workspace.begin, *steps, partial(self._finish_in_place, workspace)))

    def n_best(self, states: BeamStates) -> NBest:
        """The hypotheses of streams that have ended, best first."""
        return n_best(states, self._fusion, self._is_normalized, self._is_ctc)

    def _steps(self, scratch: BeamScratch, states: BeamStates) -> tuple[Step | While, ...]:
        carried, algorithm = states.carried_frames.shape[1], self.algorithm
        if isinstance(algorithm, CtcSearch):
            return _frame_steps(scratch, algorithm, range(carried, scratch.projected_frames.shape[1]))
        # 1) expand: advance every stream as far as possible
        mark_can_step = partial(_mark_can_step, scratch, algorithm)
        expand = While(CAN_STEP, (partial(_step, scratch, partial(algorithm.step, scratch)), mark_can_step))
        # 2) force blanks for hypotheses whose frames will not be carried
        mark_behind = partial(_mark_behind, scratch, carried)
        force_blanks = While(IS_BEHIND, (partial(_force_blanks, scratch, algorithm), mark_behind))
        return mark_can_step, expand, mark_behind, force_blanks

    def _scratch(
        self, projected_frames: torch.Tensor, lengths: torch.Tensor, is_end: torch.Tensor, states: BeamStates
    ) -> BeamScratch:
        """The scratch tensors of one chunk, with storage that may grow."""
        spare_columns = 2 * projected_frames.shape[1] + 1  # a label and a blank at each frame, and one to write to
        return BeamScratch(
            hyps=BatchedBeamHyps(
                states.hypotheses, states.unstable, spare_columns, self.network.blank, is_ctc=self._is_ctc
            ),
            context=map_tensors(torch.clone, states.context),
            projected_frames=torch.cat([states.carried_frames, projected_frames], dim=1),
            first_frames=states.frames_seen - states.carried_frames.shape[1],
            end_frames=states.frames_seen + lengths,
            is_end=is_end,
            beam_sizes=states.beam_sizes,
        )

    def _finish_in_place(self, workspace: BeamWorkspace) -> None:
        paths = workspace.scratch.hyps.trace_back_within(workspace.max_labels)
        workspace.store(*self._finish(workspace.scratch, workspace.lengths, workspace.states, paths))

    def _finish(
        self, scratch: BeamScratch, lengths: torch.Tensor, states: BeamStates, paths: TokenLists
    ) -> tuple[BeamUpdate, BeamStates]:
        """Splits the stable labels off and packs the states; paths: [B, K, M'], of all hypotheses."""
        # 1) split stable labels from unstable suffixes, and prune hypotheses that do not fit
        hypotheses, end_frames = scratch.hyps.beam, scratch.end_frames
        room = states.unstable.tokens.labels.shape[2]
        best = best_of(hypotheses, self._is_normalized)
        split = split_stable(hypotheses, paths, best, room)
        is_pruned = hypotheses.is_live & ~split.is_kept
        hypotheses = hypotheses._replace(scores=torch.where(split.is_kept, hypotheses.scores, ABSENT))
        # 2) results: of the unstable suffixes, the best hypothesis's
        slowest = torch.where(scratch.is_unfinished, hypotheses.next_frames, end_frames.unsqueeze(1)).amin(dim=1)
        at_best = best.unsqueeze(2).expand(-1, -1, room)
        update = BeamUpdate(
            stable=split.stable,
            unstable=TokenLists(
                map_tensors(lambda t: t.gather(1, at_best).squeeze(1), split.unstable.tokens),
                split.unstable.lengths.gather(1, best).squeeze(1),
            ),
            lag_encoder_frames=end_frames - slowest,
        )
        # 3) carry the last R frames: [B, R, J]
        carried = states.carried_frames.shape[1]
        newest = lengths.unsqueeze(1) + torch.arange(carried, device=lengths.device)
        return update, states._replace(
            hypotheses=hypotheses,
            unstable=split.unstable,
            context=scratch.context,
            carried_frames=rows_at(scratch.projected_frames, newest),
            frames_seen=end_frames,
            forced_blanks=states.forced_blanks + scratch.forced_blanks,
            pruned_hypotheses=states.pruned_hypotheses + is_pruned.sum(dim=1),
        )


def _step(scratch: BeamScratch, step: Step) -> None:
    scratch.hyps.make_room()
    step()


def _mark_can_step(scratch: BeamScratch, algorithm: AlsdSearch | AesSearch) -> None:
    scratch.mark_unfinished()
    algorithm.mark_can_step(scratch)
    torch.any(scratch.can_step, dim=0, out=scratch.any_can_step)


def _mark_behind(scratch: BeamScratch, carried: int) -> None:
    scratch.mark_unfinished()
    first_kept = (scratch.end_frames - carried).unsqueeze(1)
    torch.logical_and(scratch.is_unfinished, scratch.hyps.beam.next_frames < first_kept, out=scratch.is_behind)
    torch.any(scratch.is_behind, out=scratch.any_is_behind)


def _force_blanks(scratch: BeamScratch, algorithm: AlsdSearch | AesSearch) -> None:
    algorithm.operations.force_blanks(scratch, scratch.is_behind)
    scratch.forced_blanks += scratch.is_behind.sum(dim=1)


def _frame_steps(scratch: BeamScratch, algorithm: CtcSearch, frames: range) -> tuple[Step, ...]:
    """One step for each of `frames`, numbers of the chunk's frames in `projected_frames`."""
    steps: list[Step] = [scratch.mark_unfinished]
    for frame in frames:
        steps += (partial(_step, scratch, partial(algorithm.step, scratch, frame)), scratch.mark_unfinished)
    return tuple(steps)


class CapturedBeamSearch:
    """Runs a beam search with a driver; a batch is padded to a bucket with streams without hypotheses."""

    def __init__(self, search: BeamSearch, driver: Driver, max_batch: int, frames: int, sizes: BeamSizes | None = None):
        """Prepares all buckets.

        frames: encoder frames of a usual chunk; longer ones are decoded in parts, with the result of such chunks.
        sizes: of the streams' `BeamStates`.
        """
        sizes = sizes or BeamSizes()
        self._search, self._frames = search, frames
        in_reach = sizes.carried_encoder_frames + frames
        labels, columns = search.algorithm.max_labels(in_reach), search.algorithm.max_columns(in_reach)
        self._buffers = BeamBuffers(search.network, max_batch, frames, sizes, labels, columns)
        self._buckets = Buckets(driver, max_batch, self._buffers.workspace, search.program)

    @torch.inference_mode()
    def decode(
        self, projected_frames: torch.Tensor, lengths: torch.Tensor, is_end: torch.Tensor, states: BeamStates
    ) -> tuple[BeamUpdate, BeamStates]:
        """Equals `BeamSearch.decode`, but the next call overwrites the tensors returned.

        A batch above the largest bucket is decoded eagerly. It synchronizes as its driver does.
        """
        batch = len(lengths)
        bucket = self._buckets.fitting(batch)
        if bucket is None:
            return self._search.decode(projected_frames, lengths, is_end, states)
        self._buffers.load_states(states)
        stable: list[TokenLists] = []
        is_split = projected_frames.shape[1] > self._frames
        for part in split_chunk(projected_frames, lengths, self._frames):
            self._buffers.load(part.projected_frames, part.lengths, is_end & (part.remaining == 0))
            bucket.run()
            part_stable = first(bucket.workspace.update.stable, batch)
            stable.append(map_tensors(torch.clone, part_stable) if is_split else part_stable)
        update = first(bucket.workspace.update, batch)
        return update._replace(stable=joined(stable)), first(bucket.workspace.states, batch)

    def n_best(self, states: BeamStates) -> NBest:
        """The hypotheses of streams that have ended, best first."""
        return self._search.n_best(states)


def beam_with_driver(
    search: BeamSearch, driver: Driver, max_batch: int, frames: int, sizes: BeamSizes | None = None
) -> BeamSearch | CapturedBeamSearch:
    """Prepares the search for `driver`; the eager one needs no preparation, and takes the search as it is."""
    return search if driver.name == "no_graphs" else CapturedBeamSearch(search, driver, max_batch, frames, sizes)


def joined(parts: list[TokenLists]) -> TokenLists:
    """Concatenates the labels [B, M] of the parts for each stream; does not synchronize."""
    if len(parts) == 1:
        return parts[0]
    lengths = [part.lengths for part in parts]
    return TokenLists(join_rows([part.tokens for part in parts], lengths), torch.stack(lengths).sum(dim=0))
