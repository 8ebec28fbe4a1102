"""How much of a beam a slot has room for. Knows no tensors, so that a launcher can reckon with it."""

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
