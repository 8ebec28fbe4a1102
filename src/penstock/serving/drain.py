"""Lets the live streams of a server end before it stops."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.pipeline.slots.drain import DrainBoard, Phase
from penstock.serving.settings import DRAIN_BOARD, LEDGER

if TYPE_CHECKING:
    from penstock.pipeline.slots.ledger import SlotLedger

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


class Table(NamedTuple):
    """A server's view of its stream table."""

    board: DrainBoard
    ledger: "SlotLedger"


def attach_table(runtime: Path) -> Table | None:
    """The table of a server that is ready, None if its models keep none. Its files may be removed afterwards."""
    from penstock.pipeline.slots.ledger import SlotLedger  # imports numpy

    board = DrainBoard.attach(runtime / DRAIN_BOARD)
    return None if board is None else Table(board, SlotLedger(len(board.times_ns), runtime / LEDGER))


def drain_streams(
    table: Table | None,
    limit_s: float,
    has_ended: Callable[[], bool],
    on_wait: Callable[[int], object],
) -> Drained | None:
    """Rejects new streams and waits at most `limit_s` for the live ones; then rejects their requests too.

    Streams that have sent their last request in time get its answer, a few seconds later. The next request of any
    stream logs those that did not end. Returns None where the models keep no table of streams.
    on_wait: called with the number of streams if there are any to wait for.
    """
    if table is None:
        return None
    board, ledger = table

    def live(silent_s: float = float("inf")) -> int:
        return board.live_streams(silent_s, ledger.ended_generations().tolist())

    def unsettled(lost_s: float = float("inf")) -> set[int]:
        return board.unsettled_slots(ledger.settled_requests, lost_s)

    def wait_while(condition: Callable[[], int], limit_s: float) -> None:
        deadline_s = time.monotonic() + limit_s
        while condition() and time.monotonic() < deadline_s and not has_ended():
            time.sleep(_POLL_S)

    started_s = time.monotonic()
    board.phase = Phase.DRAINING
    wait_while(lambda: board.is_admitting, limit_s)  # by the phase before
    streams = live()
    if waits_for := live(SILENT_S):
        on_wait(waits_for)
    wait_while(lambda: live(SILENT_S), started_s + limit_s - time.monotonic())
    left, owed = live(), unsettled(LOST_S)
    board.phase = Phase.CLOSED
    wait_while(lambda: live(SILENT_S), _NOTICE_S)
    wait_while(lambda: len(owed & unsettled()), _ANSWER_S)
    left += len(owed & unsettled())
    board.phase = Phase.OVER
    return Drained(max(streams, left), left)
