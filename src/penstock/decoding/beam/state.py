"""The state of a stream's beam between chunks, and its store in slots on the device."""

from typing import NamedTuple

import torch

from penstock.decoding.beam.hyps import ABSENT, KEEP, Hypotheses, TokenLists, Tokens
from penstock.decoding.beam.scratch import BeamContext, BeamNetwork
from penstock.decoding.beam.sizes import MAX_BEAM_SIZE, BeamSizes
from penstock.decoding.ctc.head import CtcHead
from penstock.decoding.tensors.state_store import StateStore
from penstock.decoding.tensors.tensor_tree import map_tensors, unflatten
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


def fresh_states(
    network: BeamNetwork,
    batch: int,
    sizes: BeamSizes,
    beam_sizes: torch.Tensor | None = None,
    fusion: FusionStates | None = None,
    ilm: IlmWeights = (),
) -> BeamStates:
    """`batch` beams of one empty hypothesis; beam_sizes, fusion and ilm as in `BeamStateStore.reset`.

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
    tokens = Tokens(*(integers(beam_size, labels) for _ in range(3)), *token_scores)
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
    if not ilm and not isinstance(network, CtcHead):
        ilm = network.ilm_weights([network.config.ilm_beam or IlmPair()] * batch)
    return with_choices(states, beam_sizes, fusion, ilm)


def with_choices(
    states: BeamStates, beam_sizes: torch.Tensor | None, fusion: FusionStates | None, ilm: IlmWeights
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
