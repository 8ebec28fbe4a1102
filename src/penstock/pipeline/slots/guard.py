"""SlotGuard rejects requests with a stale lease generation, and what follows a missing request."""

import numpy as np

from penstock.errors import ErrorCode, StreamError
from penstock.frontend.ranks import rounds
from penstock.pipeline.slots.ledger import STAGES, SlotLedger
from penstock.pipeline.slots.ticket import END, START

STEP_ERRORS = (RuntimeError, ValueError, IndexError)  # what torch raises: out of memory, a device error, a wrong shape


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
        self._ended = np.zeros(slots, np.int64)  # the generation that ended well
        self._settled_missing = np.zeros(slots, np.int64)  # the generation for which `_settle_missing` has been done

    def admit(
        self, slots: np.ndarray, generations: np.ndarray, numbers: np.ndarray, flags: np.ndarray
    ) -> dict[int, StreamError]:
        """Gives slots to streams that start; returns, by row, why requests do not belong to their slot's state.

        All [R] int64, rows in order; a slot may occur several times. numbers: the stream's requests before each.
        One may be missing: Triton drops what it has not run yet when a client disconnects.
        """
        errors: dict[int, StreamError] = {}
        # Checked first: a negative number would index another stream's slot, from the end.
        known = self._are_known(slots).nonzero()[0]
        if len(known) < len(slots):
            message = f"the {self._stage} accepts only requests forwarded by the features stage"
            unknown = (~self._are_known(slots)).nonzero()[0].tolist()
            errors = {row: StreamError(ErrorCode.REQUEST_INVALID, message) for row in unknown}
        # In rounds: whether a row is admitted depends on the one before it of its slot.
        for places in rounds(slots[known]):
            rows = known[places]  # the next request of each slot
            is_admitted = self._admit_round(slots[rows], generations[rows], numbers[rows], flags[rows])
            for row in rows[~is_admitted].tolist():
                errors[row] = self._rejection(int(slots[row]), int(generations[row]), int(numbers[row]))
        return errors

    def _are_known(self, slots: np.ndarray) -> np.ndarray:
        return (slots >= 0) & (slots < self._slots)

    def _admit_round(
        self, slots: np.ndarray, generations: np.ndarray, numbers: np.ndarray, flags: np.ndarray
    ) -> np.ndarray:
        """Returns which requests [n], all of different slots, are admitted, [n] bool."""
        held, is_start = self._generations[slots], (flags & START) > 0
        # Only a newer one: a start that comes late must not reset the stream that has the slot now.
        is_new = is_start & (generations > held)
        is_next = numbers == self._requests[slots]
        goes_on = ~is_start & (generations == held) & is_next & ~self._is_closed[slots]
        is_admitted = is_new | goes_on
        if self._is_last:
            # What an earlier stage rejected comes here with zeros in place of its frames: they must not become words.
            is_admitted &= self._ledger.failed_generations(slots, before=self._stage) < generations
        if len(started := (is_new & is_admitted).nonzero()[0]):
            opened = slots[started]
            self._generations[opened] = generations[started]
            self._is_closed[opened] = False
            self._requests[opened] = 0
        # After the reset above: a start is request 0 of its stream, and number 1 follows.
        self._requests[slots[is_admitted]] += 1
        is_end = is_admitted & ((flags & END) > 0)
        self._is_closed[slots[is_end]] = True
        self._ended[slots[is_end]] = generations[is_end]
        return is_admitted

    def _rejection(self, slot: int, generation: int, number: int) -> StreamError:
        if generation == self._ended[slot]:  # a second poll: the stream's last reply may still be on its way
            return StreamError(ErrorCode.STREAM_NOT_OPEN, "the stream has ended; start it again")
        why = f"the {self._stage} no longer has this stream's state; start the stream again"
        if self._is_last and self._ledger.failed_generations(slot, before=self._stage) >= generation:
            why = "an earlier stage lost this stream; start the stream again"
        elif generation == self._generations[slot] and not self._is_closed[slot] and number > self._requests[slot]:
            why = f"a request of this stream is missing in the {self._stage}; start it again"
        if self._is_last:
            # What Triton dropped never comes here: its slot would not be free before its deadline.
            self._settle_missing(slot, generation, number)
        return self.reject(slot, generation, why)

    def _settle_missing(self, slot: int, generation: int, number: int) -> None:
        """Counts a stream's requests before its first rejected one that did not come here; requests come in order."""
        held = self._generations[slot]
        is_over = generation < held or (generation == held and self._is_closed[slot])
        if is_over or generation <= self._settled_missing[slot]:
            return
        # Once per stream: its later requests are rejected, too, and would count the same ones again.
        self._settled_missing[slot] = generation
        missing = number - (int(self._requests[slot]) if generation == held else 0)
        if missing > 0:
            self._ledger.settle_all(self._stage, np.full(missing, slot), np.full(missing, generation))

    def reject(self, slot: int, generation: int, why: str, code: ErrorCode = ErrorCode.STREAM_LOST) -> StreamError:
        """Ends the stream here and marks it as failed for the stream table, which may have forwarded more requests.

        Its requests go on to the last stage, which rejects and settles them.
        """
        # Not for a late request of an earlier stream: the slot's present one goes on.
        self._is_closed[slot] |= generation == self._generations[slot]
        # For the stream table, which must close the stream even if its client sends nothing more.
        self._ledger.fail(self._stage, slot, generation, code)
        return StreamError(code, why)

    def end(self, slot: int, generation: int) -> None:
        """Ends a stream whose work is done, after the request that had END: see `SlotLedger.end`."""
        self._is_closed[slot] |= generation == self._generations[slot]
        self._ended[slot] = generation
        self._ledger.end(self._stage, slot, generation)

    def settle(self, slots: np.ndarray, generations: np.ndarray) -> None:
        """Counts requests [n] that the last stage has answered, with a result or an error."""
        # A rejected row may name a slot that does not exist.
        is_known = self._are_known(slots)
        self._ledger.settle_all(self._stage, slots[is_known], generations[is_known])
