"""Waiting for live streams, with a board that the test writes as a stream table would."""

import time

import pytest

from penstock.pipeline.slots.drain import DrainBoard, Phase
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import StreamTable
from penstock.serving.drain import LOST_S, SILENT_S, attach_table, drain_streams
from penstock.serving.settings import DRAIN_BOARD, LEDGER
from tests.helpers.forwarding import forward

SLOTS = 4


@pytest.fixture
def board(tmp_path) -> DrainBoard:
    return DrainBoard(SLOTS, tmp_path / DRAIN_BOARD)


def drain(tmp_path, limit_s: float, has_ended=lambda: False) -> tuple[tuple[int, int] | None, list[int]]:
    waited: list[int] = []
    return drain_streams(attach_table(tmp_path), limit_s, has_ended, waited.append), waited


def test_streams_that_end_are_waited_for(board, tmp_path):
    live = [1, 3]
    for slot in live:
        board.times_ns[slot] = int(1e9 * (time.monotonic() + 1000))  # as if it sent requests all the time

    def end_a_stream() -> bool:
        if live:
            assert board.phase == Phase.DRAINING
            board.times_ns[live.pop()] = 0
        return False

    assert drain(tmp_path, 600.0, end_a_stream) == ((2, 0), [2])
    assert not live


def test_a_stream_that_is_being_admitted_is_waited_for(board, tmp_path):
    board.is_admitting = True

    def admit_and_end() -> bool:
        assert board.phase == Phase.DRAINING
        if board.is_admitting:
            board.times_ns[2] = int(1e9 * (time.monotonic() + 1000))
            board.is_admitting = False
        else:
            board.times_ns[2] = 0
        return False

    assert drain(tmp_path, 600.0, admit_and_end) == ((1, 0), [1])


def test_streams_that_do_not_end_are_cut_off_and_counted(board, tmp_path):
    board.times_ns[0] = int(1e9 * (time.monotonic() + 1000))
    assert drain(tmp_path, 0.1) == ((1, 1), [1])
    assert board.phase == Phase.OVER


def test_a_silent_stream_is_not_waited_for_but_counted(board, tmp_path):
    board.times_ns[0] = int(1e9 * (time.monotonic() - SILENT_S - 1))
    assert drain(tmp_path, 600.0) == ((1, 1), [])


def test_the_last_answer_of_a_stream_that_ends_with_the_drain_is_waited_for(board, tmp_path):
    ledger = SlotLedger(SLOTS, tmp_path / LEDGER)
    table = StreamTable(2, ledger, board=board)
    lease, phases = table.open("a"), []

    def end_then_settle() -> bool:
        phases.append(board.phase)
        if board.live_streams():
            forward(table, lease)
            table.close("a")
        elif board.phase == Phase.CLOSED:
            ledger.settle("decoder", *lease)
        return False

    assert drain(tmp_path, 600.0, end_then_settle) == ((1, 0), [1])
    assert phases == [Phase.DRAINING, Phase.CLOSED]


def test_a_stream_whose_last_answer_does_not_come_is_counted_unless_it_is_lost(board, tmp_path):
    table = StreamTable(2, SlotLedger(SLOTS, tmp_path / LEDGER), board=board)
    lease = table.open("a")
    forward(table, lease)
    table.close("a")
    assert drain(tmp_path, 600.0, lambda: True) == ((1, 1), [])
    board.times_ns[lease.slot] = -int(1e9 * (time.monotonic() - LOST_S - 1))
    assert drain(tmp_path, 600.0) == ((0, 0), [])


def test_a_server_that_ends_meanwhile_is_not_waited_for(board, tmp_path):
    board.times_ns[0] = int(1e9 * (time.monotonic() + 1000))
    assert drain(tmp_path, 600.0, lambda: True)[0] == (1, 1)


def test_a_repository_without_a_stream_table_is_left_to_triton(tmp_path):
    assert drain(tmp_path, 600.0) == (None, [])


def test_a_file_whose_work_is_done_is_not_waited_for(board, tmp_path):
    """The stream table closes it with its next call, which may never come."""
    for slot in (0, 1):
        board.times_ns[slot], board.generations[slot] = int(1e9 * (time.monotonic() + 1000)), 7
    SlotLedger(SLOTS, tmp_path / LEDGER).end("encoder", 1, 7)
    assert drain(tmp_path, 0.1) == ((1, 1), [1])
