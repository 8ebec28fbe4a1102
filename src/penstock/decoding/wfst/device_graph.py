"""A decoding graph as tensors on the device of its search."""

import numpy as np
import torch

from penstock.errors import GraphError
from penstock.scoring.wfst.graph_file import NO_WORD, DecodingGraph

NO_PIECE = -1
MEMORY_PER_FILE = 3.0
"""The most memory of a `DeviceGraph`, in sizes of the graph's file: 33 of 16 bytes per arc, 20 of 12 per closure entry,
36 of 12 per state."""


class DeviceGraph:
    """Arrays of a `DecodingGraph` (S states, A arcs, C closure entries) as tensors.

    int64 where they are summed or used as keys: a sum of two integer types would convert one of them every time.

    Entry A of the arcs stands for a frame that a token does not take: label `idle_label`, cost 0. State S has neither
    arcs nor closure entries: the state of a place without a token.
    """

    def __init__(self, graph: DecodingGraph, device: torch.device | str = "cpu"):
        """GraphError where a state cannot take a frame."""
        self.vocabulary_size, self.blank, self.topology = graph.vocabulary_size, graph.blank, graph.topology
        self.start_state, self.dead_state, self.idle_arc = graph.start_state, graph.state_count, len(graph.arc_labels)
        self.idle_label = graph.blank + 1
        self.word_count = len(graph.words)
        self.largest_degree, self.largest_closure = graph.largest_degree, graph.largest_closure
        self.device = torch.device(device)
        degrees, closures = np.diff(graph.arc_offsets), np.diff(graph.closure_offsets)
        _check_complete(graph, degrees)
        sources = np.repeat(np.arange(graph.state_count, dtype=np.int32), degrees)
        is_repeat = (graph.arc_targets == sources) & (graph.arc_words == NO_WORD)
        begins_piece = (graph.arc_labels != graph.blank) & ~is_repeat

        def upload(array: np.ndarray, *more: float) -> torch.Tensor:
            return torch.from_numpy(np.append(array, np.array(more, array.dtype))).to(self.device)

        def wide(array: np.ndarray, *more: int) -> torch.Tensor:
            return upload(array.astype(np.int64), *more)

        self.arc_starts = wide(graph.arc_offsets)
        self.degrees = wide(degrees, 0)
        self.arc_labels = wide(graph.arc_labels, self.idle_label)
        self.arc_weights = upload(graph.arc_weights, 0)
        self.arc_words = wide(graph.arc_words, NO_WORD)
        self.arc_words_and_labels = (self.arc_words << 32) | self.arc_labels
        """[A + 1] int64, the word in the upper half: one look-up for both."""
        self.arc_targets = wide(graph.arc_targets, 0)
        self.arc_pieces = upload(np.where(begins_piece, graph.arc_labels, NO_PIECE).astype(np.int32), NO_PIECE)
        """[A + 1] the token that begins on an arc; NO_PIECE for blanks and repeats."""
        self.arc_has_node = upload(begins_piece | (graph.arc_words != NO_WORD), False)
        """[A + 1] bool, True where a piece or a word begins."""
        self.closure_starts = wide(graph.closure_offsets)
        self.closure_degrees = wide(closures, 0)
        self.closure_targets = wide(graph.closure_targets)
        self.closure_weights = upload(graph.closure_weights)
        self.has_closure_words = bool((graph.closure_words != NO_WORD).any())
        self.closure_words = wide(graph.closure_words)
        self.closure_words_and_targets = (self.closure_words << 32) | self.closure_targets
        self.final_weights = upload(graph.final_weights, np.inf)

    @property
    def array_bytes(self) -> int:
        """Memory of all tensors."""
        return sum(t.numel() * t.element_size() for t in vars(self).values() if isinstance(t, torch.Tensor))


def _check_complete(graph: DecodingGraph, degrees: np.ndarray) -> None:
    """Every state must have an arc, its own or one after its closure, or a path could die."""
    behind = np.maximum.reduceat(degrees[graph.closure_targets], graph.closure_offsets[:-1])
    if (behind == 0).any():
        raise GraphError(f"state {int(np.argmin(behind))} of the graph cannot take a frame")
