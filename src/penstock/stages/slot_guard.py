"""Tells a later stage's own stream from a stranger: which generation each slot's state belongs to."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from penstock.errors import StreamError, StreamErrorKind
from penstock.slot_ledger import SlotLedger
from penstock.streams import Lease

STEP_ERRORS = (RuntimeError, ValueError, IndexError)  # what torch raises: out of memory, a device error, a wrong shape


class LeasedRequest(Protocol):
    """What a later stage is asked for."""

    lease: Lease
    is_start: bool


_Request = TypeVar("_Request", bound=LeasedRequest)


def admit_all(
    requests: Sequence[_Request], admit: Callable[[_Request], StreamError | None]
) -> list[StreamError | None]:
    """What `admit` says of each request of a batch.

    It is asked about starts before all else, the newest first, so that a request left over from a slot's earlier stream
    is refused before it can share this batch with the new one. (Such a request has waited longer than the idle limit.)
    """
    answers: list[StreamError | None] = [None] * len(requests)
    order = sorted(range(len(requests)), key=lambda i: (not requests[i].is_start, -requests[i].lease.generation))
    for i in order:
        answers[i] = admit(requests[i])
    return answers


class SlotGuard:
    """Checks the lease of each request against the state that the stage really holds.

    They differ where this stage was restarted, or where a request was overtaken by a new stream in its slot.
    """

    def __init__(self, stage: str, slots: int, ledger: SlotLedger):
        self._stage = stage
        self._ledger = ledger
        self._generations = [0] * slots
        self._is_lost = [False] * slots

    def admit(self, lease: Lease, is_start: bool) -> StreamError | None:
        """Takes the slot over for a stream that starts; refuses what does not belong to the slot's state."""
        if not 0 <= lease.slot < len(self._generations):
            return StreamError(
                StreamErrorKind.INVALID_ARGUMENT, f"the {self._stage} takes requests of the feature member only"
            )
        held = self._generations[lease.slot]
        if is_start and lease.generation > held:
            self._generations[lease.slot] = lease.generation
            self._is_lost[lease.slot] = False
            return None
        if lease.generation == held and not is_start and not self._is_lost[lease.slot]:
            return None
        return self.refuse(lease, f"the {self._stage} no longer holds this stream; start it again")

    def refuse(self, lease: Lease, why: str) -> StreamError:
        """Gives the stream up and tells the stream table so, which may have handed on further requests by then."""
        self._is_lost[lease.slot] |= lease.generation == self._generations[lease.slot]
        self._ledger.fail(self._stage, lease.slot, lease.generation)
        self._ledger.settle(self._stage, *lease)
        return StreamError(StreamErrorKind.INTERNAL, why)

    def settle(self, lease: Lease) -> None:
        """The request has been answered here for good."""
        self._ledger.settle(self._stage, *lease)
