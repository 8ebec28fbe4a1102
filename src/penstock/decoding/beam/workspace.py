"""BeamWorkspace: one chunk of beam search as tensors at fixed addresses: input, scratch and output."""

from dataclasses import dataclass

import torch

from penstock.decoding.beam.hyps import ABSENT, BatchedBeamHyps, TokenLists, Tokens
from penstock.decoding.beam.results import BeamUpdate
from penstock.decoding.beam.scratch import BeamNetwork, BeamScratch
from penstock.decoding.beam.sizes import BeamSizes
from penstock.decoding.beam.state import BeamStates, fresh_states
from penstock.decoding.ctc.head import CtcHead
from penstock.decoding.tensors.tensor_tree import copy_into, first


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
            return TokenLists(Tokens(*(integers(room) for _ in range(3)), *scores), integers())

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
