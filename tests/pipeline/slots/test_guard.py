"""Requests of earlier, later and lost streams in one slot: whose state a later stage holds."""

from collections import Counter

import numpy as np
import pytest

from penstock.errors import ErrorCode, StreamError, StreamErrorKind
from penstock.pipeline.slots.guard import SlotGuard
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.ticket import END, START

SLOT = 1


def admit(guard: SlotGuard, *rows: tuple[int, int, int], slot: int = SLOT) -> list[StreamError | None]:
    """rows: generation, number, flags."""
    generations, numbers, flags = np.array(rows, np.int64).T
    errors = guard.admit(np.full(len(rows), slot), generations, numbers, flags)
    return [errors.get(row) for row in range(len(rows))]


class Rig:
    """A guard whose slot 1 belongs to generation 20."""

    def __init__(self):
        self.ledger = SlotLedger(3)
        self.guard = SlotGuard("encoder", 3, self.ledger)
        self.numbers: Counter[int] = Counter()
        assert self.is_admitted(20, is_start=True)

    def is_admitted(self, generation: int, is_start: bool = False) -> bool:
        (error,) = admit(self.guard, (generation, self.numbers[generation], START * is_start))
        self.numbers[generation] += error is None
        return error is None


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.parametrize(
    ("generation", "is_start", "is_admitted"),
    [(20, False, True), (20, True, False), (19, False, False), (19, True, False), (21, False, False), (21, True, True)],
)
def test_only_the_slots_own_stream_and_a_newer_start_are_admitted(rig, generation, is_start, is_admitted):
    assert rig.is_admitted(generation, is_start) == is_admitted
    assert rig.ledger.failed_generations(SLOT) == (0 if is_admitted else generation)


def test_a_lost_stream_is_not_admitted_again(rig):
    """The stream's next request may have been on its way when the step failed."""
    error = rig.guard.reject(SLOT, 20, "the encoder failed")
    assert (error.kind, str(error)) == (StreamErrorKind.INTERNAL, "STREAM_LOST: the encoder failed")
    assert not rig.is_admitted(20)
    assert rig.ledger.failed_generations(SLOT) == 20
    assert rig.is_admitted(21, is_start=True)
    assert rig.is_admitted(21)


def test_the_decoder_rejects_what_the_encoder_has_lost():
    """Requests that the encoder rejects go on to the decoder, which settles every request."""
    ledger = SlotLedger(3)
    encoder, decoder = (SlotGuard(stage, 3, ledger) for stage in ("encoder", "decoder"))
    for guard in (encoder, decoder):
        assert admit(guard, (20, 0, START)) == [None]
    encoder.reject(SLOT, 20, "the encoder failed")
    (error,) = admit(decoder, (20, 1, 0))
    assert str(error) == "STREAM_LOST: an earlier stage lost this stream; start the stream again"
    assert admit(decoder, (21, 0, START)) == [None]


def test_a_missing_request_is_noticed(rig):
    """Triton drops what it has not run yet when a client disconnects."""
    assert admit(rig.guard, (5, 0, START), (5, 1, 0), (5, 2, 0), slot=2) == [None] * 3
    missing, behind, start = admit(rig.guard, (5, 4, 0), (5, 5, 0), (6, 0, START), slot=2)
    assert str(missing) == "STREAM_LOST: a request of this stream is missing in the encoder; start it again"
    assert str(behind) == "STREAM_LOST: the encoder no longer has this stream's state; start the stream again"
    assert start is None


def test_a_request_that_comes_twice_is_rejected(rig):
    assert admit(rig.guard, (5, 0, START), (5, 1, 0), slot=2) == [None] * 2
    (error,) = admit(rig.guard, (5, 1, 0), slot=2)
    assert "no longer has this stream's state" in str(error)


def test_settling_reports_the_slots(rig):
    decoder = SlotGuard("decoder", 3, rig.ledger)
    decoder.settle(np.array([2, 2, 0, -1, 3]), np.array([5, 5, 5, 5, 5]))
    assert [rig.ledger.settled_requests(slot, 5) for slot in range(3)] == [1, 0, 2]


@pytest.mark.parametrize("arrived", [0, 2])
@pytest.mark.parametrize("is_lost_before", [True, False])
def test_the_last_stage_settles_the_requests_that_never_came_to_it(arrived, is_lost_before):
    """Else the slot would wait for them until the idle timeout."""
    ledger = SlotLedger(3)
    encoder, decoder = (SlotGuard(stage, 3, ledger) for stage in ("encoder", "decoder"))
    came = [(20, number, START * (number == 0)) for number in range(arrived)]
    came += [(20, 4, 0), (20, 5, 0), (20, 6, END)]  # 2 or 4 before them are missing
    for row in came:
        if is_lost_before:
            admit(encoder, row)
        assert (admit(decoder, row) == [None]) == (row[1] < arrived)
        decoder.settle(np.array([SLOT]), np.array([20]))
    assert ledger.settled_requests(SLOT, 20) == 7


def test_a_rejected_start_is_settled_once():
    ledger = SlotLedger(3)
    encoder, decoder = (SlotGuard(stage, 3, ledger) for stage in ("encoder", "decoder"))
    encoder.admit(np.array([SLOT]), np.array([20]), np.array([0]), np.array([START]))
    encoder.reject(SLOT, 20, "the encoder failed")
    for row in ((20, 0, START), (20, 1, 0), (20, 2, END)):
        assert admit(decoder, row) != [None]
        decoder.settle(np.array([SLOT]), np.array([20]))
    assert ledger.settled_requests(SLOT, 20) == 3


def test_an_ended_stream_is_not_admitted_again(rig):
    assert admit(rig.guard, (20, 1, END)) == [None]
    (error,) = admit(rig.guard, (20, 2, 0))
    assert error.code is ErrorCode.STREAM_NOT_OPEN
    assert rig.ledger.failed_generations(SLOT) == 0  # its last reply may be on its way to the decoder
    assert rig.is_admitted(21, is_start=True)
    assert rig.is_admitted(21)


def test_requests_of_one_batch_are_admitted_in_order():
    """An old stream's last requests, then the slot's new stream, then what is left over of the old one."""
    guard = SlotGuard("encoder", 3, SlotLedger(3))
    rows = [(20, 0, START), (20, 1, END), (21, 0, START), (20, 2, 0), (21, 1, 0)]
    assert [error is None for error in admit(guard, *rows)] == [True, True, True, False, True]
