"""The board between a launcher and a stream table, and what the table does in each phase."""

import time

import pytest

from penstock.errors import ErrorCode, StreamError
from penstock.pipeline.slots.drain import DrainBoard, Phase
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import StreamRecord, StreamTable, slot_count
from tests.helpers.forwarding import forward

STREAMS = 3


@pytest.fixture
def board(tmp_path) -> DrainBoard:
    DrainBoard(slot_count(STREAMS), tmp_path / "drain")
    return DrainBoard.attach(tmp_path / "drain")


@pytest.fixture
def settled() -> list[StreamRecord]:
    return []


@pytest.fixture
def table(board, settled, tmp_path) -> StreamTable:
    shared = DrainBoard(slot_count(STREAMS), tmp_path / "drain")
    return StreamTable(STREAMS, SlotLedger(slot_count(STREAMS)), board=shared, on_settled=settled.append)


def code_of(call, *args) -> ErrorCode:
    with pytest.raises(StreamError) as caught:
        call(*args)
    return caught.value.code


def test_the_board_shows_live_streams(board, table):
    assert board.live_streams() == 0
    for name in "ab":
        table.open(name)
    assert board.live_streams() == 2
    table.close("a")
    assert board.live_streams() == 1


def test_a_stream_without_requests_is_not_counted(board, tmp_path):
    other = DrainBoard(slot_count(STREAMS), tmp_path / "drain")
    other.times_ns[0] = int(1e9 * (time.monotonic() - 100))
    other.times_ns[1] = int(1e9 * (time.monotonic()))
    assert (board.live_streams(), board.live_streams(50.0)) == (2, 1)
    other.times_ns[0] = 0
    assert board.live_streams() == 1


def test_a_stream_whose_request_waits_for_a_step_is_counted(board, tmp_path):
    clock = [time.monotonic() - 100]
    shared = DrainBoard(slot_count(STREAMS), tmp_path / "drain")
    table = StreamTable(STREAMS, SlotLedger(slot_count(STREAMS)), clock=lambda: clock[0], board=shared)
    table.open("a")
    with table.step():
        assert board.live_streams(50.0) == 1
        clock[0] += 100
    assert board.live_streams(50.0) == 1
    with table.step():
        table.close("a")
        assert board.live_streams() == 0
    assert board.live_streams() == 0
    assert board.step_began_ns == 0


def test_an_admission_is_shown_before_the_phase_is_read(board, table, monkeypatch):
    reads, phase, shown = type(vars(DrainBoard)["phase"]), vars(DrainBoard)["phase"], []
    read = reads.__get__

    def read_phase(cell, owner, *args):
        if cell is phase:
            shown.append(board.is_admitting)
        return read(cell, owner, *args)

    monkeypatch.setattr(reads, "__get__", read_phase)
    table.open("a")
    assert shown[0]
    assert not board.is_admitting


def test_a_drain_rejects_new_streams_only(board, table):
    lease = table.open("a")
    board.phase = Phase.DRAINING
    assert code_of(table.open, "b") is ErrorCode.SERVER_DRAINING
    assert code_of(table.open, "a") is ErrorCode.SERVER_DRAINING  # a restart is a new stream
    assert table.look_up("a") == lease


def test_after_the_drain_each_stream_is_cut_off_at_its_next_request(board, table, settled):
    for name in "ab":
        table.open(name)
    board.phase = Phase.CLOSED
    assert code_of(table.look_up, "a") is ErrorCode.SERVER_DRAINING
    assert code_of(table.look_up, "a") is ErrorCode.STREAM_NOT_OPEN
    assert board.live_streams() == 1
    board.phase = Phase.OVER
    table.count_free()
    assert board.live_streams() == 0
    assert {(record.stream_id, record.ended_by) for record in settled} == {
        ("a", "SERVER_DRAINING"),
        ("b", "SERVER_DRAINING"),
    }


def test_a_server_without_a_stream_table_has_no_board(tmp_path):
    assert DrainBoard.attach(tmp_path / "drain") is None
    (tmp_path / "drain").write_bytes(b"")
    assert DrainBoard.attach(tmp_path / "drain") is None


@pytest.mark.parametrize("ended_by", ["end", "idle", "restart", "AUDIO_INVALID"])
def test_each_stream_is_reported_once_when_its_requests_have_settled(ended_by):
    now, settled, ledger = [0.0], [], SlotLedger(slot_count(STREAMS))
    table = StreamTable(STREAMS, ledger, 10.0, lambda: now[0], on_settled=settled.append)
    lease = table.open("a", "greedy")
    for is_final in (False, True):
        forward(table, lease, 1600, is_final)
    if ended_by == "idle":
        now[0] = 10.1
    elif ended_by == "restart":
        table.open("a", "alsd")
    else:
        table.close("a", ended_by=ended_by)
    table.count_free()
    assert settled == []
    for _ in range(2):
        ledger.settle("decoder", *lease)
    table.count_free()
    table.count_free()
    (record,) = settled
    assert (record.stream_id, record.ended_by, record.decoder) == ("a", ended_by, "greedy")
    assert (record.samples, record.segments) == (3200, 1)


def test_a_stream_that_a_later_stage_rejected_is_reported_with_its_code():
    settled, ledger = [], SlotLedger(slot_count(STREAMS))
    table = StreamTable(STREAMS, ledger, on_settled=settled.append)
    for name, code in (("full", ErrorCode.PHRASE_MEMORY_FULL), ("lost", ErrorCode.STREAM_LOST)):
        lease = table.open(name)
        forward(table, lease)
        ledger.fail("decoder", *lease, code)
        ledger.settle("decoder", *lease)
    table.count_free()
    assert [(record.stream_id, record.ended_by) for record in settled] == [
        ("full", "PHRASE_MEMORY_FULL"),
        ("lost", "STREAM_LOST"),
    ]
