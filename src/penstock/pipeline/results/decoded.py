"""What a stream decoder returns for a chunk: new tokens, and at the end of a segment its alternatives."""

from dataclasses import dataclass
from typing import NamedTuple

from penstock.decoding.wfst.n_best import SegmentLattice
from penstock.pipeline.results.words import Token


class TokenAlternative(NamedTuple):
    """One of the N best token sequences of a whole segment."""

    tokens: list[Token]
    """Those after the ones reported as stable; with `is_whole`, all."""
    score: float
    """Log-probability with language model and boosting."""
    acoustic_score: float
    """Log-probability of the network alone."""
    is_whole: bool = False
    """True where stable tokens may differ from those reported."""


@dataclass(frozen=True)
class Decoded:
    """Tokens that a chunk added to one stream."""

    stable: list[Token]
    """New tokens that will not change."""
    unstable: list[Token]
    """Tokens of the best hypothesis after the stable ones; may change."""
    alternatives: list[TokenAlternative]
    """Best first, at the end of a segment if the stream requested N-best."""
    lattice: SegmentLattice | None = None
    """With the alternatives of a search over a decoding graph."""


NOTHING = Decoded([], [], [])
"""Of most chunks: no tokens. Shared, and compared with `is`."""
