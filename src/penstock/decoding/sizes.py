"""Sizes and limits of the searches. Does not import torch."""

from typing import NamedTuple

MAX_BEAM_SIZE = 32
"""Hypotheses of a beam search, at most."""
CTC_LABEL_BONUS = 1.5
"""Nats that the CTC beam search adds to the language model's log-probability of each label, against deletions."""
GREEDY_WINDOW_ENCODER_FRAMES = 8
"""Frames that a greedy search scores at once, at most."""


class BeamSizes(NamedTuple):
    """Memory of one stream's beam."""

    beam_size: int = 4
    """K hypotheses, 1 .. 32; a stream may choose fewer."""
    carried_encoder_frames: int = 32
    """R, frames carried to the next chunk; hypotheses further behind are moved on by forced blanks."""
    unstable_labels: int = 128
    """M, labels of the unstable suffix; hypotheses that differ before it are pruned."""


class AesLimits(NamedTuple):
    """Parameters of AES++, with Kim et al.'s values by default, but for the number of expansions."""

    expansions_per_frame: int = 5
    """Labels of a hypothesis at one frame before a blank is forced. With Kim et al.'s 2, words whose tokens a model
    emits at one frame are cut: an AES++ beam then makes more errors than greedy search (docs/beam_search.md)."""
    margin: float = 2.3
    """gamma: continuations that score this much below the hypothesis's best are pruned."""
    extra_labels: int = 2
    """beta: a hypothesis is expanded by its best K + beta labels."""


class WfstSizes(NamedTuple):
    """Memory of one stream's search over a decoding graph, which does not depend on the graph."""

    max_active: int = 2048
    """K, tokens after a frame."""
    nodes: int = 8192
    """C, pieces and words in the part of the paths that may still change."""
    unstable_nodes: int = 1024
    """M, those of the best path alone."""

    @property
    def arcs(self) -> int:
        """A, arcs that one frame may follow, and closure entries."""
        return 8 * self.max_active

    @property
    def hash_cells(self) -> int:
        """Cells of a row's hash table, a power of two."""
        return 1 << (4 * self.max_active - 1).bit_length()

    @property
    def bytes_per_stream(self) -> int:
        """Size of a slot of `WfstStateStore`."""
        fields_of_token, fields_of_node, other = 5, 6, 7 * 8 + 4
        return 4 * (fields_of_token * self.max_active + fields_of_node * self.nodes) + other

    @property
    def alternative_links(self) -> int:
        """Links of a frame beside the best ones of its tokens, kept for the lattice."""
        return 2 * self.max_active

    def path_width(self, frames: int) -> int:
        """Nodes that the best path may have at the end of a chunk of `frames`."""
        return self.unstable_nodes + 2 * frames


class WfstLimits(NamedTuple):
    """Limits that prune the search over a decoding graph."""

    beam: float = 10.0
    """Nats below the best token."""
    blank_penalty: float = 0.0
    """Nats off the log-probability of blank."""
    skip_blank: float = 1.0
    """Frames whose blank is at least as probable are skipped, except the first of a run; 1: none."""
    lattice_beam: float = 5.0
    """Nats above the best path up to which alternatives are kept."""
