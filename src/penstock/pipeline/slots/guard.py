"""SlotGuard rejects requests with a stale lease generation, and what follows a missing request."""

import numpy as np

from penstock.errors import ErrorCode, StreamError
from penstock.frontend.ranks import ranks
from penstock.pipeline.slots.ledger import STAGES, SlotLedger
from penstock.pipeline.slots.ticket import END, START

STEP_ERRORS = (RuntimeError, ValueError, IndexError)  # what torch raises: out of memory, a device error, a wrong shape
NOT_COUNTED = -1
"""Stands for the number of a request whose stream's requests are not counted."""


class SlotGuard:
    """Compares the lease of each request with the generation whose state the stage holds.

    They differ if this stage was restarted, or if a new stream took the slot while the request was on its way.
    """

    def __init__(self, stage: str, slots: int, ledger: SlotLedger):
        self._stage = stage
        self._ledger = ledger
        self._is_last = stage == STAGES[-1]
        self._slots = slots
        self._generations = np.zeros(slots, np.int64)
        self._requests = np.zeros(slots, np.int64)
        self._is_closed = np.zeros(slots, bool)  # ended or lost: the slot's generation has no state
        self._settled_missing = np.zeros(slots, np.int64)  # the generation for which `_settle_missing` has been done

    def admit(
        self, slots: np.ndarray, generations: np.ndarray, numbers: np.ndarray, flags: np.ndarray
    ) -> dict[int, StreamError]:
        """Gives slots to streams that start; returns, by row, why requests do not belong to their slot's state.

        All [R] int64, rows in order; a slot may occur several times. numbers: the stream's requests before each, or
        NOT_COUNTED. One may be missing: Triton drops what it has not run yet when a client disconnects.
        """
        errors: dict[int, StreamError] = {}
        is_known = (slots >= 0) & (slots < self._slots)
        for row in np.flatnonzero(~is_known).tolist():
            errors[row] = StreamError(
                ErrorCode.REQUEST_INVALID, f"the {self._stage} accepts only requests forwarded by the features stage"
            )
        known = np.flatnonzero(is_known)
        rank = ranks(slots[known])
        for number in range(int(rank.max(initial=-1)) + 1):
            rows = known[rank == number]  # the next request of each slot
            for row in rows[~self._admit_round(slots[rows], generations[rows], numbers[rows], flags[rows])].tolist():
                errors[row] = self._rejection(int(slots[row]), int(generations[row]), int(numbers[row]))
        return errors

    def _admit_round(
        self, slots: np.ndarray, generations: np.ndarray, numbers: np.ndarray, flags: np.ndarray
    ) -> np.ndarray:
        """Returns which requests [n], all of different slots, are admitted, [n] bool."""
        held, is_start = self._generations[slots], (flags & START) > 0
        is_new = is_start & (generations > held)
        is_next = (numbers == self._requests[slots]) | (numbers == NOT_COUNTED)
        goes_on = ~is_start & (generations == held) & is_next & ~self._is_closed[slots]
        if self._is_last:
            is_lost = self._ledger.failed_generations(before=self._stage)[slots] >= generations
            is_new, goes_on = is_new & ~is_lost, goes_on & ~is_lost
        self._generations[slots[is_new]] = generations[is_new]
        self._is_closed[slots[is_new]] = False
        self._requests[slots[is_new]] = 0
        is_admitted = is_new | goes_on
        self._requests[slots[is_admitted]] += 1
        self._is_closed[slots[is_admitted & ((flags & END) > 0)]] = True
        return is_admitted

    def _rejection(self, slot: int, generation: int, number: int) -> StreamError:
        why = f"the {self._stage} no longer has this stream's state; start the stream again"
        if self._is_last and self._ledger.failed_generation(slot, before=self._stage) >= generation:
            why = "an earlier stage lost this stream; start the stream again"
        elif generation == self._generations[slot] and not self._is_closed[slot] and number > self._requests[slot]:
            why = f"a request of this stream is missing in the {self._stage}; start it again"
        if self._is_last:
            self._settle_missing(slot, generation, number)
        return self.reject(slot, generation, why)

    def _settle_missing(self, slot: int, generation: int, number: int) -> None:
        """Counts a stream's requests before its first rejected one that did not come here; requests come in order."""
        held = self._generations[slot]
        is_over = generation < held or (generation == held and self._is_closed[slot])
        if is_over or generation <= self._settled_missing[slot]:
            return
        self._settled_missing[slot] = generation
        missing = number - (int(self._requests[slot]) if generation == held else 0)
        if missing > 0:
            self._ledger.settle_all(self._stage, np.full(missing, slot), np.full(missing, generation))

    def reject(self, slot: int, generation: int, why: str, code: ErrorCode = ErrorCode.STREAM_LOST) -> StreamError:
        """Ends the stream here and marks it as failed for the stream table, which may have forwarded more requests.

        Its requests go on to the last stage, which rejects and settles them.
        """
        self._is_closed[slot] |= generation == self._generations[slot]
        self._ledger.fail(self._stage, slot, generation, code)
        return StreamError(code, why)

    def settle(self, slots: np.ndarray, generations: np.ndarray) -> None:
        """Counts requests [n] that the last stage has answered, with a result or an error."""
        is_known = (slots >= 0) & (slots < self._slots)
        self._ledger.settle_all(self._stage, slots[is_known], generations[is_known])
