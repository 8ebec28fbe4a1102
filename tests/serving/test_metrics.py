"""Counters and gauges say what happened, and cross to the server only when they change."""

import types
from types import MappingProxyType

import numpy as np
import pytest

from penstock.errors import StreamError
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import StreamTable, slot_count
from penstock.pipeline.slots.ticket import NO_ROW, Column, Ticket
from penstock.pipeline.stages.decoder_rows import DecodedRows
from penstock.pipeline.stream_decoders.base import NO_TRUNCATION, TruncationCounters
from penstock.serving.metrics import ChunkMetrics, SpeakerMetrics, StreamMetrics, show_build, show_products
from penstock.serving.settings import Settings
from tests.helpers.forwarding import forward


class Board:
    """Makes metrics and keeps what they show."""

    def __init__(self):
        self.shown: dict[str, float] = {}
        self.kinds: dict[str, str] = {}
        self.calls = 0

    def make(self, name: str, meaning: str, kind: str, labels=MappingProxyType({})) -> types.SimpleNamespace:
        name += "".join(f"{{{value}}}" for value in labels.values())
        assert meaning and name not in self.shown
        self.shown[name], self.kinds[name] = 0.0, kind

        def increment(value: float) -> None:
            assert value >= 0
            self.calls += 1
            self.shown[name] += value

        def replace(value: float) -> None:
            assert kind == "gauge"
            self.calls += 1
            self.shown[name] = value

        return types.SimpleNamespace(increment=increment, set=replace)

    def __getitem__(self, name: str) -> float:
        return self.shown[f"penstock_{name}"]


class Rig:
    """A table of two streams with metrics and a clock that only the test moves."""

    def __init__(self):
        self.now, self.board = 0.0, Board()
        self.ledger = SlotLedger(slot_count(2))
        self.table = StreamTable(2, self.ledger, 10.0, lambda: self.now)
        self.metrics = StreamMetrics(self.board.make, self.table, 16000)

    def counts(self) -> dict[str, float]:
        self.metrics.update(0)
        names = (
            "streams_live",
            "slots_free",
            *(f"streams_{n}_total" for n in ("started", "ended", "expired", "refused")),
        )
        return {name.removesuffix("_total"): self.board[name] for name in names}


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.parametrize(("precision", "shown"), [("auto", "float32"), ("int8", "int8")])
def test_what_is_served_is_shown(bundled_model, precision, shown):
    board, environment = Board(), {"PENSTOCK_MODEL": str(bundled_model), "PENSTOCK_DEVICE": "cpu"}
    show_build(board.make, Settings.from_environment(environment | {"PENSTOCK_PRECISION": precision}))
    (name,) = board.shown
    assert name.endswith(f"{{cpu}}{{{shown}}}")
    show_products(board.make, {"int8": 3, "float32": 1})
    assert (board["encoder_products{int8}"], board["encoder_products{float32}"]) == (3, 1)


def test_what_happens_to_streams_is_counted(rig):
    assert rig.counts()["slots_free"] == 2
    for name in "ab":
        rig.table.open(name)
    for name in "cd":
        with pytest.raises(StreamError):
            rig.table.open(name)
    assert rig.counts() == {
        "streams_live": 2, "slots_free": 0, "streams_started": 2, "streams_ended": 0, "streams_expired": 0,
        "streams_refused": 2,
    }  # fmt: skip
    rig.table.close("a")
    rig.table.open("b")  # started again
    assert rig.counts() == {
        "streams_live": 1, "slots_free": 1, "streams_started": 3, "streams_ended": 2, "streams_expired": 0,
        "streams_refused": 2,
    }  # fmt: skip


def test_the_work_of_a_speaker_model_is_counted():
    board, steps = Board(), types.SimpleNamespace(steps=3, rows=7)
    stage = types.SimpleNamespace(steps=steps, busy_s=1.5, lost_streams=2)
    SpeakerMetrics(board.make, stage).update()
    names = ("steps_total", "chunks_total", "busy_seconds_total", "streams_lost_total")
    assert [board[f"speaker_{name}"] for name in names] == [3, 7, 1.5, 2]


def test_streams_with_speakers_are_shown():
    board, ledger = Board(), SlotLedger(slot_count(3))
    table = StreamTable(3, ledger, 10.0, lambda: 0.0, speaker_streams=2)
    metrics = StreamMetrics(board.make, table, 16_000)
    for name, has_speakers in (("a", True), ("b", False)):
        table.open(name, has_speakers=has_speakers)
    metrics.update(0)
    assert (board["speaker_streams_live"], board["speaker_slots_free"]) == (1, 1)


def test_the_audio_of_open_files_is_shown(rig):
    rig.metrics.update(16_000)
    assert rig.board["audio_held_seconds"] == 0
    for samples in (32_000, 0):
        rig.metrics.update(32_000, samples)
        assert rig.board["audio_held_seconds"] == samples / 16_000


def test_gauges_go_down_when_streams_expire_without_a_call_of_the_table(rig):
    rig.table.open("a")
    assert rig.counts()["streams_live"] == 1
    rig.now = 10.1
    assert rig.counts() == {
        "streams_live": 0, "slots_free": 2, "streams_started": 1, "streams_ended": 0, "streams_expired": 1,
        "streams_refused": 0,
    }  # fmt: skip


def test_a_slot_whose_requests_are_on_their_way_is_not_free(rig):
    leases = []
    for name in range(rig.table.slots):
        leases.append(rig.table.open(name))
        forward(rig.table, leases[-1])
        rig.table.close(name)
    assert (rig.counts()["streams_live"], rig.counts()["slots_free"]) == (0, 0)
    rig.ledger.settle("decoder", *leases[0])
    assert rig.counts()["slots_free"] == 1


def test_a_probe_is_no_stream(rig):
    rig.table.open("probe", is_probe=True)
    rig.table.close("probe")
    assert rig.counts()["streams_started"] == rig.counts()["streams_ended"] == 0
    for name in "ab":
        rig.table.open(name)
    with pytest.raises(StreamError):
        rig.table.open("probe", is_probe=True)
    assert (rig.counts()["streams_started"], rig.counts()["streams_refused"]) == (2, 0)


def test_audio_is_counted_in_seconds(rig):
    for samples in (8000, 8000, 24000):
        rig.metrics.update(samples)
    assert rig.board["audio_seconds_total"] == 1.5


def test_nothing_is_told_that_has_not_changed(rig):
    rig.table.open("a")
    rig.metrics.update(160)
    calls = rig.board.calls
    for _ in range(5):
        rig.metrics.update(160)
    assert rig.board.calls == calls


def decoded(received_ns: int, *frames: int) -> Ticket:
    rows = np.tile(NO_ROW, (len(frames), 1))
    rows[:, Column.SLOT], rows[:, Column.FRAMES] = range(len(frames)), frames
    return Ticket(rows, received_ns)


def update(metrics: ChunkMetrics, *tickets: Ticket) -> None:
    metrics.update(tickets, [DecodedRows({}, True)] * len(tickets))


def test_a_chunk_is_late_after_its_own_duration():
    board, now = Board(), [0]
    metrics = ChunkMetrics(board.make, chunk_encoder_frames=7, chunk_ms=560, clock_ns=lambda: now[0])
    received_ns = 5_000_000_000
    now[0] = received_ns + 560_000_000
    update(metrics, decoded(received_ns, 7), decoded(0, 0), decoded(received_ns, 15))
    assert (board["chunks_total"], board["chunks_late_total"]) == (4, 0)
    now[0] += 1
    update(metrics, decoded(received_ns, 14, 0), decoded(received_ns + 1, 1))
    assert (board["chunks_total"], board["chunks_late_total"]) == (7, 2)


def test_the_latency_of_chunks_is_a_histogram():
    board, now = Board(), [10_000_000_000]
    metrics = ChunkMetrics(board.make, chunk_encoder_frames=7, chunk_ms=560, clock_ns=lambda: now[0])
    update(metrics, decoded(now[0] - 20_000_000, 7, 0), decoded(now[0] - 200_000_000, 14))
    assert board["chunk_latency_seconds_count"] == 3
    assert board["chunk_latency_seconds_sum"] == pytest.approx(0.42)
    counts = [board[f"chunk_latency_seconds_bucket{{{bound}}}"] for bound in ("0.01", "0.025", "0.15", "0.25", "+Inf")]
    assert counts == [0, 1, 1, 3, 3]
    update(metrics, decoded(now[0] - 9_000_000_000, 7))
    assert board["chunk_latency_seconds_count"] == 3  # once per second
    now[0] += 1_000_000_000
    update(metrics)
    assert (board["chunk_latency_seconds_count"], board["chunk_latency_seconds_bucket{+Inf}"]) == (4, 4)
    assert board["chunk_latency_seconds_bucket{5}"] == 3


def test_what_beams_give_up_is_counted():
    board = Board()
    metrics = ChunkMetrics(board.make, chunk_encoder_frames=7, chunk_ms=560)
    for losses in (NO_TRUNCATION, TruncationCounters(2, 0), TruncationCounters(2, 0), TruncationCounters(5, 1, 4, 3)):
        metrics.update([], [], losses)
    assert (board["beam_forced_frames_total"], board["beam_dropped_hypotheses_total"]) == (5, 1)
    assert (board["wfst_narrowed_frames_total"], board["wfst_dropped_tokens_total"]) == (4, 3)
    assert board.kinds["penstock_beam_forced_frames_total"] == "counter"
    assert board.calls == 5
