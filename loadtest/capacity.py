"""The search for the largest number of streams that passes: doubling, then bisection, then a longer trial. No I/O."""

from collections.abc import Callable

Trial = Callable[[int], bool]
"""Streams -> whether they pass."""


def search(passes: Trial, first: int, most: int, resolution: float) -> int:
    """The most streams that passed, at most `most`; 0 if not even one does.

    Ends where the gap to the fewest that failed is one stream or `resolution` of those that passed.
    """
    if not 1 <= first <= most:
        raise ValueError(f"the search begins with {first} streams, expected 1 to {most}")
    passed, failed, streams = 0, most + 1, first
    while True:
        if passes(streams):
            passed = streams
        else:
            failed = streams
        if passed == most or (failed <= most and failed - passed <= max(1, int(resolution * passed))):
            return passed
        streams = min(2 * streams, most) if failed > most else (passed + failed) // 2


def confirm(passes: Trial, streams: int, resolution: float) -> int:
    """The most streams, from `streams` downwards in steps of `resolution`, that pass a longer trial; 0 if none does."""
    while streams and not passes(streams):
        streams = max(0, min(streams - 1, round((1 - resolution) * streams)))
    return streams
