"""Whose state a later stage holds: requests of earlier, later and lost streams in one slot."""

import pytest

from penstock.errors import StreamErrorKind
from penstock.slot_ledger import SlotLedger
from penstock.stages.slot_guard import SlotGuard
from penstock.streams import Lease


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
    assert rig.ledger.settled_requests().tolist() == [0, int(not is_admitted), 0]
    assert rig.ledger.failed_generation(1) == (0 if is_admitted else generation)


def test_a_refusal_says_what_to_do(rig):
    error = rig.guard.admit(Lease(1, 21), is_start=False)
    assert error.kind is StreamErrorKind.INTERNAL
    assert str(error) == "the encoder no longer holds this stream; start it again"


def test_strangers_do_not_cost_the_stream_its_slot(rig):
    for generation in (19, 21):
        assert not rig.is_admitted(generation)
    assert rig.is_admitted(20)


def test_a_lost_stream_is_not_admitted_again(rig):
    """Its next request may have been on its way when the step failed."""
    error = rig.guard.refuse(Lease(1, 20), "the encoder failed")
    assert (error.kind, str(error)) == (StreamErrorKind.INTERNAL, "the encoder failed")
    assert not rig.is_admitted(20)
    assert rig.ledger.failed_generation(1) == 20
    assert rig.is_admitted(21, is_start=True)
    assert rig.is_admitted(21)


def test_settling_reports_the_slot(rig):
    rig.guard.settle(Lease(2, 5))
    assert rig.ledger.settled_requests().tolist() == [0, 0, 1]
