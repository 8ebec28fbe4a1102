"""Lets the live streams of a server end before it stops."""

import time
from collections.abc import Callable
from pathlib import Path

from penstock.pipeline.slots.drain import DrainBoard, Phase
from penstock.serving.settings import DRAIN_BOARD

SILENT_S = 5.0
"""A stream without a request for this long is not waited for: its client is probably gone."""
_NOTICE_S = 1.0  # a client that sends audio in real time sends a request within it, which gets the error's code
_POLL_S = 0.05


def drain_streams(
    runtime: Path,
    limit_s: float,
    has_ended: Callable[[], bool],
    on_wait: Callable[[int], object],
) -> int:
    """Rejects new streams and waits at most `limit_s` for the live ones; then rejects their requests too.

    Returns how many streams did not end; the next request of any stream logs them. on_wait: called with the number of
    streams if there are any to wait for.
    """
    board = DrainBoard.attach(runtime / DRAIN_BOARD)
    if board is None:
        return 0
    deadline_s = time.monotonic() + limit_s
    board.phase = Phase.DRAINING
    while board.is_admitting and time.monotonic() < deadline_s and not has_ended():
        time.sleep(_POLL_S)  # by the phase before; then it is on the board
    if streams := board.live_streams(SILENT_S):
        on_wait(streams)
    while board.live_streams(SILENT_S) and time.monotonic() < deadline_s and not has_ended():
        time.sleep(_POLL_S)
    left = board.live_streams()
    board.phase = Phase.CLOSED
    deadline_s = time.monotonic() + _NOTICE_S
    while board.live_streams(SILENT_S) and time.monotonic() < deadline_s and not has_ended():
        time.sleep(_POLL_S)
    board.phase = Phase.OVER
    return left
