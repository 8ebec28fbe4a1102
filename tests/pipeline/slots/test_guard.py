"""Whose state a later stage holds: requests of earlier, later and lost streams in one slot."""

from typing import NamedTuple

import pytest

from penstock.errors import StreamErrorKind
from penstock.pipeline.slots.guard import SlotGuard, admit_all
from penstock.pipeline.slots.ledger import STAGES, SlotLedger
from penstock.pipeline.slots.table import Lease


class Rig:
    """A guard whose slot 1 belongs to generation 20."""

    def __init__(self):
        self.ledger = SlotLedger(3)
        self.guard = SlotGuard("encoder", 3, self.ledger)
        assert self.guard.admit(Lease(1, 20), is_start=True) is None

    def is_admitted(self, generation: int, is_start: bool = False) -> bool:
        return self.guard.admit(Lease(1, generation), is_start) is None


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.parametrize(
    ("generation", "is_start", "is_admitted"),
    [(20, False, True), (20, True, False), (19, False, False), (19, True, False), (21, False, False), (21, True, True)],
)
def test_only_the_slots_own_stream_and_a_newer_start_are_admitted(rig, generation, is_start, is_admitted):
    assert rig.is_admitted(generation, is_start) == is_admitted
    assert rig.ledger.failed_generation(1) == (0 if is_admitted else generation)


def test_a_rejection_says_what_to_do(rig):
    error = rig.guard.admit(Lease(1, 21), is_start=False)
    assert error.kind is StreamErrorKind.INTERNAL
    assert str(error) == "STREAM_LOST: the encoder no longer has this stream's state; start the stream again"


def test_stale_requests_do_not_cost_the_stream_its_slot(rig):
    for generation in (19, 21):
        assert not rig.is_admitted(generation)
    assert rig.is_admitted(20)


def test_a_lost_stream_is_not_admitted_again(rig):
    """Its next request may have been on its way when the step failed."""
    error = rig.guard.reject(Lease(1, 20), "the encoder failed")
    assert (error.kind, str(error)) == (StreamErrorKind.INTERNAL, "STREAM_LOST: the encoder failed")
    assert not rig.is_admitted(20)
    assert rig.ledger.failed_generation(1) == 20
    assert rig.is_admitted(21, is_start=True)
    assert rig.is_admitted(21)


def test_only_the_last_stage_settles_what_it_rejects():
    """Requests that the encoder rejects go on to the decoder, which rejects them too."""
    ledger, lease = SlotLedger(3), Lease(1, 20)
    encoder, decoder = (SlotGuard(stage, 3, ledger) for stage in STAGES)
    for guard in (encoder, decoder):
        assert guard.admit(lease, is_start=True) is None
    encoder.reject(lease, "the encoder failed")
    assert ledger.settled_requests(*lease) == 0
    assert str(decoder.admit(lease, is_start=False)) == (
        "STREAM_LOST: an earlier stage lost this stream; start the stream again"
    )
    assert ledger.settled_requests(*lease) == 1
    assert decoder.admit(Lease(1, 21), is_start=True) is None


def test_a_missing_request_is_noticed(rig):
    """Triton drops what it has not run yet when a client disconnects."""
    lease = Lease(2, 5)
    assert rig.guard.admit(lease, True, 0) is None
    assert [rig.guard.admit(lease, False, number) for number in (1, 2)] == [None, None]
    error = rig.guard.admit(lease, False, 4)
    assert str(error) == "STREAM_LOST: a request of this stream is missing in the encoder; start it again"
    assert rig.guard.admit(lease, False, 5) is not None
    assert rig.guard.admit(Lease(2, 6), True, 0) is None


def test_settling_reports_the_slot(rig):
    rig.guard.settle(Lease(2, 5))
    assert [rig.ledger.settled_requests(slot, 5) for slot in range(3)] == [0, 0, 1]


def test_an_ended_stream_is_not_admitted_again(rig):
    rig.guard.settle(Lease(1, 20), is_end=True)
    assert not rig.is_admitted(20)
    assert rig.is_admitted(21, is_start=True)
    assert rig.is_admitted(21)


class Request(NamedTuple):
    lease: Lease
    is_start: bool


def test_the_newest_start_of_a_slot_is_admitted_before_all_else():
    guard = SlotGuard("encoder", 3, SlotLedger(3))
    assert guard.admit(Lease(1, 20), is_start=True) is None
    batch = [Request(Lease(1, 20), False), Request(Lease(1, 21), True), Request(Lease(1, 22), True)]
    answers = admit_all(batch, lambda request: guard.admit(*request))
    assert [answer is None for answer in answers] == [False, False, True]


def test_a_second_request_of_a_stream_in_one_batch_is_rejected(rig):
    batch = [Request(Lease(1, 20), False)] * 2
    first, second = admit_all(batch, lambda request: rig.guard.admit(*request))
    assert first is None
    assert str(second) == "REQUEST_INVALID: another request of this stream is in the same batch"
    assert rig.is_admitted(20)
