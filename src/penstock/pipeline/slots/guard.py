"""SlotGuard rejects requests with a stale lease generation."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from penstock.errors import ErrorCode, StreamError
from penstock.pipeline.slots.ledger import STAGES, SlotLedger
from penstock.pipeline.slots.table import Lease

STEP_ERRORS = (RuntimeError, ValueError, IndexError)  # what torch raises: out of memory, a device error, a wrong shape


class LeasedRequest(Protocol):
    """A request of a later stage."""

    @property
    def lease(self) -> Lease:
        """The slot and its generation."""

    @property
    def is_start(self) -> bool:
        """True for the first request of a stream."""


_Request = TypeVar("_Request", bound=LeasedRequest)


def admit_all(
    requests: Sequence[_Request], admit: Callable[[_Request], StreamError | None]
) -> list[StreamError | None]:
    """Returns for each request of a batch the error of `admit`, or None.

    Starts are admitted first, the newest generation first. A request left over from a slot's earlier stream is then
    rejected before it can share this batch with the new stream. A stream's second request in a batch is rejected too:
    only a client that calls a later stage directly, in two sequences, can send one.
    """
    answers: list[StreamError | None] = [None] * len(requests)
    order = sorted(range(len(requests)), key=lambda i: (not requests[i].is_start, -requests[i].lease.generation))
    admitted: set[Lease] = set()
    for i in order:
        answers[i] = admit(requests[i])
        if answers[i] is None and requests[i].lease in admitted:
            answers[i] = StreamError(ErrorCode.REQUEST_INVALID, "another request of this stream is in the same batch")
        admitted.add(requests[i].lease)
    return answers


class SlotGuard:
    """Compares the lease of each request with the generation whose state the stage holds.

    They differ if this stage was restarted, or if a new stream took the slot while the request was on its way.
    """

    def __init__(self, stage: str, slots: int, ledger: SlotLedger):
        self._stage = stage
        self._ledger = ledger
        self._is_last = stage == STAGES[-1]
        self._generations = [0] * slots
        self._requests = [0] * slots
        self._is_closed = [False] * slots  # ended or lost: the slot's generation has no state

    def admit(self, lease: Lease, is_start: bool, number: int | None = None) -> StreamError | None:
        """Gives the slot to a stream that starts; rejects a request that does not belong to the slot's state.

        number: the stream's requests before this one, where they are counted: one of them may be missing, because
        Triton drops what it has not run yet when a client disconnects.
        """
        if not 0 <= lease.slot < len(self._generations):
            return StreamError(
                ErrorCode.REQUEST_INVALID, f"the {self._stage} accepts only requests forwarded by the features stage"
            )
        if self._is_last and self._ledger.failed_generation(lease.slot, before=self._stage) >= lease.generation:
            return self.reject(lease, "an earlier stage lost this stream; start the stream again")
        held = self._generations[lease.slot]
        if is_start and lease.generation > held:
            self._generations[lease.slot] = lease.generation
            self._is_closed[lease.slot] = False
            self._requests[lease.slot] = 1
            return None
        is_next = number is None or number == self._requests[lease.slot]
        if lease.generation == held and is_next and not is_start and not self._is_closed[lease.slot]:
            self._requests[lease.slot] += 1
            return None
        if lease.generation == held and not is_next:
            return self.reject(lease, f"a request of this stream is missing in the {self._stage}; start it again")
        return self.reject(lease, f"the {self._stage} no longer has this stream's state; start the stream again")

    def reject(self, lease: Lease, why: str, code: ErrorCode = ErrorCode.STREAM_LOST) -> StreamError:
        """Ends the stream here and marks it as failed for the stream table, which may have forwarded more requests.

        Its requests go on to the last stage, which rejects and settles them.
        """
        self._is_closed[lease.slot] |= lease.generation == self._generations[lease.slot]
        self._ledger.fail(self._stage, lease.slot, lease.generation, code)
        if self._is_last:
            self._ledger.settle(self._stage, *lease)
        return StreamError(code, why)

    def settle(self, lease: Lease, is_end: bool = False) -> None:
        """Counts a request that was answered here; after a stream's last one, further requests are rejected."""
        if is_end:
            self._is_closed[lease.slot] = True
        self._ledger.settle(self._stage, *lease)
