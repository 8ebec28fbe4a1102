"""One frame of all rows by kernels: what `FrameStep` does where shapes are fixed, in a few launches."""

import torch

from penstock.decoding.wfst.backpointers import Backpointers
from penstock.decoding.wfst.device_graph import DeviceGraph
from penstock.decoding.wfst.frame_step import FlatTokens, Frame, StreamBoosts
from penstock.kernels.contracts import GraphArcs, GraphFrame, GraphTokens
from penstock.kernels.graph_frame import FrameMemory, FusedFrame


class FusedFrameStep:
    """Takes frames of one chunk; tokens of a row begin at a multiple of K, or of the width of the first tokens."""

    def __init__(self, graph: DeviceGraph, memory: FrameMemory, beam: float, batch: int):
        self._fused = FusedFrame(_arcs_of(graph), memory, beam)
        self._batch = batch
        self._rows = torch.arange(batch, device=graph.device).repeat_interleave(memory.active)

    def begin(
        self, label_costs: torch.Tensor, lm_weights: torch.Tensor, bases: torch.Tensor, boosts: StreamBoosts | None
    ) -> None:
        """As `FrameStep.begin`."""
        self._label_costs, self._lm_weights = label_costs, lm_weights.contiguous()
        self._phrases = None if boosts is None else boosts.phrases
        self._word_boosts = None if boosts is None else boosts.words.reshape(-1)
        self._boost_rows = None if boosts is None else boosts.table_rows * boosts.words.shape[1]
        self.backpointers: list[Backpointers] = []
        self.bases = bases.clone()
        self.narrowed = torch.zeros(self._batch, dtype=torch.int64, device=bases.device)

    def __call__(self, tokens: FlatTokens, frame: Frame) -> FlatTokens:
        """As `FrameStep.__call__`."""
        assert frame.is_idle is not None
        before = GraphTokens(*(field.view(self._batch, -1) for field in tokens[1:]))
        inputs = GraphFrame(
            self._label_costs, frame.offsets, frame.is_idle, self._lm_weights, self._word_boosts, self._boost_rows
        )
        advance = None if self._phrases is None else self._phrases.advance
        after, backpointers = self._fused(before, inputs, self.bases, self.narrowed, advance)
        self.backpointers.append(Backpointers(self._rows, *(field.view(-1) for field in backpointers)))
        return FlatTokens(self._rows, *(field.view(-1) for field in after))


def _arcs_of(graph: DeviceGraph) -> GraphArcs:
    return GraphArcs(
        graph.arc_starts,
        graph.degrees,
        graph.arc_labels,
        graph.arc_weights,
        graph.arc_words,
        graph.arc_targets,
        graph.arc_pieces,
        graph.closure_starts,
        graph.closure_degrees,
        graph.closure_targets,
        graph.closure_weights,
        graph.closure_words,
    )
