"""Outcome: what became of one utterance, whichever way it was recognised."""

from typing import NamedTuple


class Outcome(NamedTuple):
    """`index` counts the utterances of the pass from 0."""

    index: int
    text: str
    error: str | None = None
    """Why there is no text."""
