"""How much of a beam a slot has room for, and how widely AES++ looks.

Knows no tensors, so that a launcher can reckon with it.
"""

from typing import NamedTuple

LARGEST_BEAM = 32


class BeamSizes(NamedTuple):
    """What a slot has room for."""

    beam_size: int = 4
    """K hypotheses, 1 .. 32; a stream may ask for fewer."""
    carried_encoder_frames: int = 32
    """R frames from the slowest hypothesis on; a hypothesis further behind is forced on."""
    tail_labels: int = 128
    """M labels of each hypothesis that not all share yet; beyond, hypotheses that differ so early are dropped."""


class AesLimits(NamedTuple):
    """The paper's parameters; Kim et al.'s values by default."""

    expansions_per_frame: int = 2
    """Labels that a hypothesis may take at one frame before a blank is forced."""
    margin: float = 2.3
    """gamma: expansions that score more than this below the hypothesis's best are pruned."""
    extra_labels: int = 2
    """beta: a hypothesis is expanded by its best K + beta labels."""
