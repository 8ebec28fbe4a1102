"""Sizes of a beam and limits of AES++. Importable without torch: a launcher computes memory from them."""

from typing import NamedTuple

MAX_BEAM_SIZE = 32


class BeamSizes(NamedTuple):
    """Capacity of one slot."""

    beam_size: int = 4
    """K hypotheses, 1 .. 32; a stream may choose fewer."""
    carried_encoder_frames: int = 32
    """R, frames carried to the next chunk; hypotheses further behind are moved on by forced blanks."""
    unstable_labels: int = 128
    """M, labels of the unstable suffix; hypotheses that differ before it are pruned."""


class AesLimits(NamedTuple):
    """The paper's parameters, with Kim et al.'s values by default, but for the number of expansions."""

    expansions_per_frame: int = 5
    """Labels of a hypothesis at one frame before a blank is forced. With Kim et al.'s 2, words whose tokens a model
    emits at one frame are cut: an AES++ beam then makes more errors than greedy search (docs/beam_search.md)."""
    margin: float = 2.3
    """gamma: continuations that score this much below the hypothesis's best are pruned."""
    extra_labels: int = 2
    """beta: a hypothesis is expanded by its best K + beta labels."""
