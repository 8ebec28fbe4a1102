"""The memory of beam search: the state of a stream's beam between chunks in slots, and a chunk's workspace."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from penstock.decoding.beam.hyps import ABSENT, KEEP, BatchedBeamHyps, Hypotheses, TimedLabels, TokenLists
from penstock.decoding.beam.scratch import BeamContext, BeamNetwork, BeamScratch
from penstock.decoding.ctc import CtcHead
from penstock.decoding.sizes import MAX_BEAM_SIZE, BeamSizes
from penstock.decoding.tensors.tensor_tree import StateStore, copy_into, first, map_tensors, unflatten
from penstock.decoding.transducer.interface import IlmWeights
from penstock.model.config import IlmPair
from penstock.scoring.fusion import FusionStates


class BeamStates(NamedTuple):
    """State of B beams. J width of a projected frame, K beam, M labels of the unstable suffix, R carried frames."""

    hypotheses: Hypotheses
    """[B, K]"""
    unstable: TokenLists
    """tokens [B, K, M], lengths [B, K]: labels that have not been reported as stable."""
    context: BeamContext
    """[B, K, ...]"""
    carried_frames: torch.Tensor
    """[B, R, J], the last R projected frames seen, newest last; R is 0 with CTC, where no hypothesis lags."""
    frames_seen: torch.Tensor
    """[B] int64, encoder frames of all earlier chunks."""
    beam_sizes: torch.Tensor
    """[B] int64, hypotheses that the stream may have."""
    forced_blanks: torch.Tensor
    """[B] int64, blanks forced for hypotheses whose frame would not have been carried."""
    pruned_hypotheses: torch.Tensor
    """[B] int64, hypotheses pruned because the unstable suffix grew beyond M labels."""


class BeamStateStore(StateStore[BeamStates]):
    """Beams of all streams."""

    def __init__(self, network: BeamNetwork, slots: int, sizes: BeamSizes | None = None):
        super().__init__(fresh_states(network, 1, sizes or BeamSizes()), slots)

    def reset(
        self,
        slots: torch.Tensor,
        beam_sizes: torch.Tensor | None = None,
        fusion: FusionStates | None = None,
        ilm: IlmWeights = (),
    ) -> None:
        """Makes `slots` [B] int64 beams of one empty hypothesis.

        beam_sizes: [B] int64, 1 .. K; all K by default. fusion: fields [B], start states and weights; none by default.
        ilm: fields [B], weights of the internal language model; by default the checkpoint's.
        """
        self.scatter(slots, with_choices(self._fresh_states(len(slots)), beam_sizes, fusion, ilm))

    def begin_segment(self, slots: torch.Tensor, best: torch.Tensor) -> None:
        """Goes on with one hypothesis per stream; scores, labels and frames of `slots` [B] int64 count from here.

        best: [B] int64, its place in a beam that has ended, of which all labels have been reported.
        """
        states = self.gather(slots)
        # 1) copy the best hypothesis into every place; only that in the first one exists
        rows = torch.arange(len(slots), device=slots.device)

        def of_best(tensor: torch.Tensor) -> torch.Tensor:
            return tensor[rows, best].unsqueeze(1).expand_as(tensor).clone()

        hypotheses, context = map_tensors(of_best, (states.hypotheses, states.context))
        fresh = self._fresh_states(len(slots))
        # 2) count from here
        self.scatter(
            slots,
            states._replace(
                hypotheses=fresh.hypotheses._replace(
                    last_labels=hypotheses.last_labels,
                    next_frames=hypotheses.next_frames - states.frames_seen.unsqueeze(1),
                    labels_at_frame=hypotheses.labels_at_frame,
                ),
                unstable=fresh.unstable,
                context=context,
                frames_seen=fresh.frames_seen,
                forced_blanks=fresh.forced_blanks,
                pruned_hypotheses=fresh.pruned_hypotheses,
            ),
        )

    def restart_phrases(
        self, slots: torch.Tensor, start: int, final_scores: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """Moves the hypotheses of `slots` [B] int64 to the state `start` of a phrase list.

        final_scores: scores of ending in states of the phrase lists, the new and the old ones.
        """
        states = self.gather(slots)
        hypotheses, fusion = states.hypotheses, states.context.fusion
        assert isinstance(fusion, FusionStates)
        ended = final_scores(fusion.boost_states)
        hypotheses = hypotheses._replace(
            scores=hypotheses.scores + ended, external_scores=hypotheses.external_scores + ended
        )
        fusion = fusion._replace(boost_states=torch.full_like(fusion.boost_states, start))
        self.scatter(slots, states._replace(hypotheses=hypotheses, context=states.context._replace(fusion=fusion)))


def fresh_states(network: BeamNetwork, batch: int, sizes: BeamSizes) -> BeamStates:
    """`batch` beams of one empty hypothesis, with the checkpoint's weights of the internal language model.

    ValueError for an unsupported size.
    """
    beam_size, carried, labels = sizes
    if not 1 <= beam_size <= MAX_BEAM_SIZE:
        raise ValueError(f"beam_size: {beam_size} is not supported; supported: 1 .. {MAX_BEAM_SIZE}")
    if carried < 0 or labels < 1:
        raise ValueError(f"carried_encoder_frames: {carried}, unstable_labels: {labels}; minimum: 0 and 1")
    device = network.device

    def integers(*shape: int, value: int = 0) -> torch.Tensor:
        return torch.full((batch, *shape), value, dtype=torch.int64, device=device)

    def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(batch, *shape, dtype=dtype, device=device)

    scores = zeros(beam_size, dtype=torch.float64)
    scores[:, 1:] = ABSENT
    hypotheses = Hypotheses(
        scores,
        external_scores=zeros(beam_size, dtype=torch.float64),
        hashes=integers(beam_size),
        lengths=integers(beam_size),
        last_labels=integers(beam_size, value=KEEP),
        next_frames=integers(beam_size),
        labels_at_frame=integers(beam_size),
    )
    token_scores = [zeros(beam_size, labels, dtype=torch.float32) for _ in range(2)]
    tokens = TimedLabels(*(integers(beam_size, labels) for _ in range(3)), *token_scores)
    prediction = unflatten(network.start(batch * beam_size), beam_size)
    no_fusion = FusionStates(integers(beam_size), integers(beam_size), zeros(beam_size, dtype=torch.float32))
    states = BeamStates(
        hypotheses=hypotheses,
        unstable=TokenLists(tokens, integers(beam_size)),
        context=BeamContext(prediction.projected, prediction.state, no_fusion, ()),
        carried_frames=zeros(carried, network.frame_width, dtype=network.dtype),
        frames_seen=integers(),
        beam_sizes=integers(value=beam_size),
        forced_blanks=integers(),
        pruned_hypotheses=integers(),
    )
    if isinstance(network, CtcHead):
        return states
    return with_choices(states, ilm=network.ilm_weights([network.config.ilm_beam or IlmPair()] * batch))


def with_choices(
    states: BeamStates,
    beam_sizes: torch.Tensor | None = None,
    fusion: FusionStates | None = None,
    ilm: IlmWeights = (),
) -> BeamStates:
    """Sets the choices of each stream, [B]; None and () keep the present ones."""
    beam_size = states.hypotheses.scores.shape[1]

    def for_each_hypothesis(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.unsqueeze(1).expand(-1, beam_size).clone()

    if beam_sizes is not None:
        states = states._replace(beam_sizes=beam_sizes)
    if fusion is not None:
        states = states._replace(context=states.context._replace(fusion=map_tensors(for_each_hypothesis, fusion)))
    if ilm:
        states = states._replace(context=states.context._replace(ilm=map_tensors(for_each_hypothesis, ilm)))
    return states


class BeamUpdate(NamedTuple):
    """Results of one chunk for each of B streams."""

    stable: TokenLists
    """[B, M]: labels that follow those reported as stable before, and will not change."""
    unstable: TokenLists
    """[B, M]: the best hypothesis's labels after the stable ones, which may change."""
    lag_encoder_frames: torch.Tensor
    """[B] int64, distance of the slowest hypothesis from the last frame seen; 0 at the end."""


@dataclass
class BeamWorkspace:
    """One chunk of B streams. R carried frames, M labels of an unstable suffix."""

    scratch: BeamScratch
    """`projected_frames` [B, R + T, J] hold the chunk after the carried frames; `context` is that of `states`."""
    states: BeamStates
    """[B], input: before the chunk; output: after it."""
    lengths: torch.Tensor
    """[B] int64, input: valid frames of the chunk."""
    update: BeamUpdate
    """[B], output; its stable labels have room for `max_labels`."""

    @property
    def max_labels(self) -> int:
        """Maximum number of labels of a hypothesis before the stable ones are split off."""
        return self.update.stable.tokens.labels.shape[1]

    def begin(self) -> None:
        """Initializes `scratch` from the input."""
        scratch, states = self.scratch, self.states
        carried = states.carried_frames.shape[1]
        scratch.hyps.restart(states.hypotheses, states.unstable)
        scratch.projected_frames[:, :carried].copy_(states.carried_frames)
        torch.sub(states.frames_seen, carried, out=scratch.first_frames)
        torch.add(states.frames_seen, self.lengths, out=scratch.end_frames)
        scratch.forced_blanks.zero_()

    def store(self, update: BeamUpdate, states: BeamStates) -> None:
        """Copies the results into the output."""
        copy_into(self.update, update)
        copy_into(self.states, states)


class BeamBuffers:
    """The memory of the workspaces of all bucket sizes, which share it because only one is in use at a time."""

    def __init__(
        self, network: BeamNetwork, batch: int, frames: int, sizes: BeamSizes, max_labels: int, max_columns: int
    ):
        """max_labels, max_columns: of a chunk, added to a hypothesis and to a stream's prefix tree.

        ValueError for an unsupported size.
        """
        states = fresh_states(network, batch, sizes)
        self._carried = sizes.carried_encoder_frames

        def integers(*shape: int) -> torch.Tensor:
            return torch.zeros(batch, *shape, dtype=torch.int64, device=network.device)

        def lists(room: int) -> TokenLists:
            scores = (integers(room).float() for _ in range(2))
            return TokenLists(TimedLabels(*(integers(room) for _ in range(3)), *scores), integers())

        # A step needs room for a column even where it adds none.
        hyps = BatchedBeamHyps(
            states.hypotheses,
            states.unstable,
            max_columns + 1,
            network.blank,
            is_growable=False,
            is_ctc=isinstance(network, CtcHead),
        )
        carried_frames = states.carried_frames
        self._workspace = BeamWorkspace(
            scratch=BeamScratch(
                hyps=hyps,
                context=states.context,
                projected_frames=carried_frames.new_zeros(batch, self._carried + frames, carried_frames.shape[2]),
                first_frames=integers(),
                end_frames=integers(),
                is_end=torch.zeros(batch, dtype=torch.bool, device=network.device),
                beam_sizes=states.beam_sizes,
            ),
            states=states,
            lengths=integers(),
            update=BeamUpdate(lists(sizes.unstable_labels + max_labels), lists(sizes.unstable_labels), integers()),
        )

    def workspace(self, batch: int) -> BeamWorkspace:
        """The workspace of a bucket: the first `batch` streams."""
        whole = self._workspace
        scratch, states = whole.scratch, first(whole.states, batch)
        return BeamWorkspace(
            BeamScratch(
                hyps=scratch.hyps.first(batch),
                context=states.context,
                projected_frames=scratch.projected_frames[:batch],
                first_frames=scratch.first_frames[:batch],
                end_frames=scratch.end_frames[:batch],
                is_end=scratch.is_end[:batch],
                beam_sizes=states.beam_sizes,
            ),
            states,
            whole.lengths[:batch],
            first(whole.update, batch),
        )

    def load(self, projected_frames: torch.Tensor, lengths: torch.Tensor, is_end: torch.Tensor) -> None:
        """Copies one chunk in: projected_frames [b, t, J], lengths, is_end [b]; the streams from b on get length 0."""
        batch, frames, _ = projected_frames.shape
        workspace = self._workspace
        chunk = workspace.scratch.projected_frames[:batch, self._carried : self._carried + frames]
        chunk.copy_(projected_frames)
        workspace.scratch.is_end[:batch].copy_(is_end)
        workspace.lengths[:batch].copy_(lengths)
        workspace.lengths[batch:].zero_()

    def load_states(self, states: BeamStates) -> None:
        """Copies the states of b streams in; those from b on get no hypotheses, so they take no step."""
        batch = len(states.frames_seen)
        copy_into(first(self._workspace.states, batch), states)
        self._workspace.states.hypotheses.scores[batch:].fill_(ABSENT)
