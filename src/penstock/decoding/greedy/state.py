"""The state of a greedy hypothesis between chunks, and its store in slots on the device."""

from typing import NamedTuple

import torch

from penstock.decoding.tensors.state_store import StateStore
from penstock.decoding.transducer.interface import IlmWeights, PredictorState, TransducerNetwork
from penstock.model.config import IlmPair
from penstock.scoring.fusion import FusionStates


class GreedyStates(NamedTuple):
    """State of B hypotheses. J width of a projected prediction."""

    projected_predictions: torch.Tensor
    """[B, J], the prediction after the last label."""
    predictor_state: PredictorState
    """Tensors [B, ...]."""
    next_frame: torch.Tensor
    """[B] int64, absolute encoder frame of the next search step; may lie beyond the frames seen (TDT)."""
    frames_seen: torch.Tensor
    """[B] int64, encoder frames of all earlier chunks."""
    labels_at_frame: torch.Tensor
    """[B] int64, labels already emitted at `next_frame`."""
    fusion: FusionStates | tuple[()]
    """Tensors [B]; all 0 in a fresh state, which has no effect: no phrases, and a language model of weight 0. A search
    without external scores needs none."""
    ilm: IlmWeights
    """Fields [B], the internal language model's weights; in a fresh state the checkpoint's."""


class GreedyStateStore(StateStore[GreedyStates]):
    """Greedy states of all streams."""

    def __init__(self, network: TransducerNetwork, slots: int):
        super().__init__(fresh_states(network, 1), slots)
        self.plain = self._sharing(self._states._replace(fusion=()))
        """The same states for a search without external scores."""

    def reset(self, slots: torch.Tensor, fusion: FusionStates | None = None, ilm: IlmWeights = ()) -> None:
        """Makes `slots` [B] int64 hypotheses without labels.

        fusion: the streams' start states [B], none by default; ilm: their weights [B], by default the checkpoint's.
        """
        fresh = self._fresh_states(len(slots))
        fresh = fresh if fusion is None else fresh._replace(fusion=fusion)
        self.scatter(slots, fresh._replace(ilm=ilm) if ilm else fresh)

    def begin_segment(self, slots: torch.Tensor) -> None:
        """Counts the frames of `slots` [B] int64 from here; the hypotheses go on."""
        states = self.gather(slots)
        ahead = states.next_frame - states.frames_seen
        self.scatter(slots, states._replace(next_frame=ahead, frames_seen=torch.zeros_like(ahead)))


def fresh_states(network: TransducerNetwork, batch: int) -> GreedyStates:
    """`batch` hypotheses without labels, without language model and phrases."""
    start = network.start(batch)

    def zeros(dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.zeros(batch, dtype=dtype, device=network.device)

    fusion = FusionStates(zeros(), zeros(), zeros(torch.float32))
    ilm = network.ilm_weights([network.config.ilm_greedy or IlmPair()] * batch)
    return GreedyStates(start.projected, start.state, zeros(), zeros(), zeros(), fusion, ilm)
