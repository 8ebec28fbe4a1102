"""Lets the live streams of a server end before it stops."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from penstock.pipeline.slots.drain import DrainBoard, Phase
from penstock.serving.settings import DRAIN_BOARD, LEDGER

SILENT_S = 5.0
"""A stream without a request for this long is not waited for: its client is probably gone."""
LOST_S = 5.0
"""An answer that a stream lacks for this long after its end is not waited for: Triton has dropped its request."""
_ANSWER_S = 3.0  # after the drain, for the others
_NOTICE_S = 1.0  # a client that sends audio in real time sends a request within it, which gets the error's code
_POLL_S = 0.05


class Drained(NamedTuple):
    """Live streams: at the begin of a drain, and those that did not end or move within it."""

    streams: int = 0
    cut_off: int = 0


def drain_streams(
    runtime: Path,
    limit_s: float,
    has_ended: Callable[[], bool],
    on_wait: Callable[[int], object],
) -> Drained | None:
    """Rejects new streams and waits at most `limit_s` for the live ones; then rejects their requests too.

    Streams that have sent their last request in time get its answer, a few seconds later. The next request of any
    stream logs those that did not end. Returns None where the models keep no table of streams.
    on_wait: called with the number of streams if there are any to wait for.
    """
    board = DrainBoard.attach(runtime / DRAIN_BOARD)
    if board is None:
        return None
    from penstock.pipeline.slots.ledger import SlotLedger  # imports numpy

    ledger = SlotLedger(len(board.times_ns), runtime / LEDGER)

    def wait_while(condition: Callable[[], int], limit_s: float) -> None:
        deadline_s = time.monotonic() + limit_s
        while condition() and time.monotonic() < deadline_s and not has_ended():
            time.sleep(_POLL_S)

    started_s = time.monotonic()
    board.phase = Phase.DRAINING
    wait_while(lambda: board.is_admitting, limit_s)  # by the phase before; then it is on the board
    streams = board.live_streams(ledger=ledger)
    if waits_for := board.live_streams(SILENT_S, ledger):
        on_wait(waits_for)
    wait_while(lambda: board.live_streams(SILENT_S, ledger), started_s + limit_s - time.monotonic())
    left, owed = board.live_streams(ledger=ledger), board.unsettled_slots(ledger, LOST_S)
    board.phase = Phase.CLOSED
    wait_while(lambda: board.live_streams(SILENT_S, ledger), _NOTICE_S)
    wait_while(lambda: len(owed & board.unsettled_slots(ledger)), _ANSWER_S)
    left += len(owed & board.unsettled_slots(ledger))
    board.phase = Phase.OVER
    return Drained(max(streams, left), left)
