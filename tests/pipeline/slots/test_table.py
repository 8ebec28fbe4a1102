"""The stream table: which stream gets a slot, and when a slot is free again."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.errors import StreamError, StreamErrorKind
from penstock.pipeline.slots.drain import DrainBoard
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import Lease, StreamTable, slot_count
from tests.helpers.forwarding import forward

IDLE_S = 10.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """A table for `max_streams` on a ledger, and a clock that only the test moves."""

    def __init__(self, max_streams: int = 2, ledger: SlotLedger | None = None):
        self.clock = Clock()
        self.ledger = ledger or SlotLedger(slot_count(max_streams))
        self.table = StreamTable(max_streams, self.ledger, IDLE_S, self.clock)

    def request(self, stream_id: str) -> Lease:
        """A request that goes to the later stages."""
        lease = self.table.look_up(stream_id)
        forward(self.table, lease)
        return lease


@pytest.fixture
def rig() -> Rig:
    return Rig()


def rejection(call, *args) -> StreamError:
    with pytest.raises(StreamError) as caught:
        call(*args)
    return caught.value


def test_a_stream_that_goes_on_after_its_end_is_closed_with_its_last_reply(rig):
    leases = [rig.table.open(name) for name in ("one", "two")]
    for lease in leases:
        forward(rig.table, lease)
    rig.ledger.end("encoder", *leases[0])
    rig.table.close_due()
    assert rig.table.live_streams == 2  # the reply is on its way
    for lease in leases:
        rig.ledger.settle("decoder", *lease)
    rig.table.close_due()
    assert (rig.table.live_streams, rig.table.ended_streams) == (1, 1)
    assert "it has ended" in str(rejection(rig.table.look_up, "one"))
    assert [rig.table.open_generation(lease.slot) for lease in leases] == [0, leases[1].generation]


def hold_all_slots(rig: Rig) -> list[Lease]:
    """Streams that have ended, each with one request on its way."""
    leases = []
    for name in range(rig.table.slots):
        rig.table.open(name)
        leases.append(rig.request(name))
        rig.table.close(name)
    return leases


def test_a_slot_that_lost_requests_once_is_as_good_as_any():
    rig = Rig(max_streams=1)
    hold_all_slots(rig)
    rig.clock.now += IDLE_S
    for _ in range(2 * rig.table.slots):
        rig.table.open("next")
        rig.ledger.settle("decoder", *rig.request("next"))
        rig.table.close("next")


def test_time_in_steps_is_not_idle_up_to_five_minutes_between_two_requests(rig):
    """A client cannot send while its request waits for a step; one that is gone does not stay for ever."""
    for name in ("waiting", "gone"):
        rig.table.open(name)
    for _ in range(3):
        with rig.table.step():
            rig.clock.now += 100.0
            rig.table.look_up("waiting")
    rig.clock.now += IDLE_S
    assert rig.table.count_free() == 0
    with rig.table.step():
        rig.clock.now += 1.0
    assert rig.table.count_free() == 1
    rig.table.look_up("waiting")
    assert "expired after 10 s" in str(rejection(rig.table.look_up, "gone"))
    assert rig.table.busy_s == 301.0


def test_a_step_that_fails_is_over(rig):
    rig.table.open("one")
    with pytest.raises(RuntimeError), rig.table.step():
        rig.clock.now += 2 * IDLE_S
        raise RuntimeError
    assert rig.table.is_open("one")
    rig.clock.now += IDLE_S + 1.0
    assert not rig.table.is_open("one")


@pytest.mark.parametrize("ask", [lambda rig: rig.table.count_free(), lambda rig: rig.table.open("three").slot])
def test_the_next_start_gets_the_slot_of_a_lost_stream(rig, ask):
    """The lost stream's client may never come back, and its requests still have to be settled first."""
    leases = [rig.table.open(name) for name in ("one", "two")]
    first, second = [rig.request("one") for _ in range(2)]
    rig.ledger.fail("decoder", leases[0].slot, leases[0].generation)
    for lease in (first, second):
        rig.ledger.settle("decoder", *lease)
    assert ask(rig) is not None
    assert rig.table.live_streams + rig.table.count_free() == 2
    assert "'one' is not open: it was lost by a later stage" in str(rejection(rig.table.look_up, "one"))
    assert rig.table.look_up("two") == leases[1]
    assert rig.table.ended_streams == 1


def test_a_new_table_on_an_old_ledger(rig):
    """The first stage has restarted: nothing that the ledger remembers concerns the new streams."""
    for name in ("one", "two"):
        old = rig.table.open(name)
        rig.ledger.settle("decoder", *old)
        rig.ledger.fail("decoder", old.slot, old.generation)
    again = Rig(ledger=rig.ledger)
    leases = [again.table.open(name) for name in ("one", "two")]
    assert all(lease.generation > old.generation for lease in leases)
    assert again.table.look_up("one") == leases[0]
    lease = again.request("one")
    again.table.close("one")
    used = [again.table.open(name).slot for name in ("three",)]
    assert lease.slot not in used


class StreamTableMachine(RuleBasedStateMachine):
    """Random histories against a plain account of the holders."""

    MAX_STREAMS = 3
    names = st.sampled_from("abcde")

    def __init__(self):
        super().__init__()
        self.rig = Rig(self.MAX_STREAMS)
        self.live: dict[str, Lease] = {}
        self.last_request: dict[str, float] = {}
        self.failed: set[str] = set()
        self.ends: dict[str, str] = {}
        self.closing: dict[Lease, float] = {}  # when its slot is free whatever has come out
        self.pending: dict[Lease, int] = {}  # requests on their way, those of slots that were given on too
        self.latest_generation = 0
        self.opened = self.expired = self.rejected = 0

    @property
    def now(self) -> float:
        return self.rig.clock.now

    def drop(self, name: str, why: str, held_s: float = IDLE_S) -> None:
        self.closing[self.live.pop(name)] = self.now + held_s
        self.ends[name] = why
        self.failed.discard(name)

    def expire(self) -> None:
        for name in [n for n in self.live if self.now - self.last_request[n] > IDLE_S]:
            self.drop(name, f"expired after {IDLE_S:g} s without a request", 0.5)
            self.expired += 1

    def drop_lost(self) -> None:
        for name in sorted(self.failed):
            self.drop(name, "was lost")

    def held(self) -> set[int]:
        """Slots of closed streams with requests that may be on their way."""
        return {lease.slot for lease, until in self.closing.items() if self.pending[lease] > 0 and self.now < until}

    def free(self) -> int:
        return slot_count(self.MAX_STREAMS) - len(self.live) - len(self.held())

    @rule(seconds=st.sampled_from([2.0, 5.0, IDLE_S, 11.0]))
    def wait(self, seconds):
        self.rig.clock.now += seconds

    @rule(seconds=st.sampled_from([2.0, 11.0]))
    def step(self, seconds):
        with self.rig.table.step():
            self.rig.clock.now += seconds
        self.last_request = {name: at + seconds for name, at in self.last_request.items()}

    @rule(name=names)
    def open(self, name):
        self.expire()
        if name in self.live:
            self.drop(name, "was started again")
        self.drop_lost()
        if len(self.live) == self.MAX_STREAMS or not self.free():
            error = rejection(self.rig.table.open, name)
            assert error.kind is StreamErrorKind.UNAVAILABLE and f"'{name}' rejected: all " in str(error)
            self.rejected += 1
            return
        lease = self.rig.table.open(name)
        assert lease.generation > self.latest_generation
        assert lease.slot not in {other.slot for other in self.live.values()}
        assert lease.slot not in self.held()
        self.pending[lease] = 0
        self.latest_generation = lease.generation
        self.live[name], self.last_request[name] = lease, self.now
        self.opened += 1

    @rule()
    def count_free(self):
        self.expire()
        self.drop_lost()
        assert self.rig.table.count_free() == min(self.MAX_STREAMS - len(self.live), self.free())

    @rule(name=names)
    def request(self, name):
        self.expire()
        if name in self.failed:
            error = rejection(self.rig.table.look_up, name)
            assert error.kind is StreamErrorKind.INTERNAL and "lost by a later stage" in str(error)
            self.drop(name, "was lost")
        elif name in self.live:
            lease = self.rig.request(name)
            assert lease == self.live[name]
            self.pending[lease] += 1
            self.last_request[name] = self.now
        else:
            error = rejection(self.rig.table.look_up, name)
            assert error.kind is StreamErrorKind.NOT_FOUND
            assert f"'{name}' is not open" in str(error) and "START" in str(error)
            assert self.ends.get(name, "was never started") in str(error)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def close(self, data):
        name = data.draw(st.sampled_from(sorted(self.live)))
        self.rig.table.close(name)
        self.drop(name, "has ended")

    @precondition(lambda self: self.live)
    @rule(data=st.data(), stage=st.sampled_from(["encoder", "decoder"]))
    def fail(self, data, stage):
        name = data.draw(st.sampled_from(sorted(self.live)))
        lease = self.live[name]
        self.rig.ledger.fail(stage, lease.slot, lease.generation)
        self.failed.add(name)

    @precondition(lambda self: any(self.pending.values()))
    @rule(data=st.data(), stage=st.sampled_from(["encoder", "decoder"]))
    def settle(self, data, stage):
        """Maybe so late that the slot has been given on."""
        lease = data.draw(st.sampled_from(sorted(lease for lease, count in self.pending.items() if count)))
        self.rig.ledger.settle(stage, *lease)
        self.pending[lease] -= 1

    @invariant()
    def no_slot_twice(self):
        slots = [lease.slot for lease in self.live.values()]
        assert len(set(slots)) == len(slots) <= self.MAX_STREAMS
        assert self.rig.table.live_streams == len(self.live)

    @invariant()
    def everybody_is_counted(self):
        table = self.rig.table
        assert (table.started_streams, table.expired_streams, table.rejected_starts) == (
            self.opened,
            self.expired,
            self.rejected,
        )
        assert table.ended_streams == self.opened - self.expired - len(self.live)


TestStreamTable = StreamTableMachine.TestCase
TestStreamTable.settings = settings(
    max_examples=60, stateful_step_count=50, derandomize=True, database=None, deadline=None
)


def test_an_expired_stream_that_lost_requests_frees_its_slot_within_a_second():
    rig = Rig(max_streams=1)
    for name in range(rig.table.slots):
        rig.table.open(name)
        rig.request(name)  # never settled: dropped with its client's connection
        rig.clock.now += IDLE_S + 0.1
    rig.clock.now += 0.3  # the last of them is expired now
    assert rig.table.count_free() == 1
    rig.clock.now += 0.5
    found = set()
    for _ in range(rig.table.slots):
        found.add(rig.table.open("next").slot)
        rig.request("next")  # so that the next one, a restart, takes another slot
    assert found == set(range(rig.table.slots))


def test_streams_with_speakers_have_a_limit_of_their_own():
    table = StreamTable(4, SlotLedger(slot_count(4)), IDLE_S, Clock(), speaker_streams=1)
    for name in ("a", "b", "c", "d"):
        table.open(name, has_speakers=name == "a")
    assert table.count_speakers() == (1, 0)
    table.close("b")
    assert "all 1 speaker streams (--speaker-streams) are taken" in str(
        rejection(lambda name: table.open(name, has_speakers=True), "e")
    )
    table.close("a")
    table.open("e", has_speakers=True)
    table.open("e")  # started again, without speakers
    assert table.count_speakers()[0] == 0


def test_closed_streams_hold_their_places_of_the_speaker_model_until_they_have_settled():
    clock, ledger = Clock(), SlotLedger(slot_count(32))
    table, leases = StreamTable(32, ledger, IDLE_S, clock, speaker_streams=1), []
    for name in range(slot_count(1)):
        leases.append(table.open(name, has_speakers=True))
        forward(table, leases[-1])
        table.close(name)
    assert "speaker streams" in str(rejection(lambda name: table.open(name, has_speakers=True), "next"))
    ledger.settle("decoder", *leases[1])
    table.open("next", has_speakers=True)


@pytest.mark.parametrize("is_open", [False, True])
def test_requests_that_ended_with_the_speaker_model_keep_no_slot(is_open):
    rig = Rig(max_streams=1)
    for name in range(3 * rig.table.slots):
        lease = rig.table.open(name)
        rig.request(name)
        if not is_open:
            rig.table.close(name)
        rig.ledger.fail("speakers", *lease)
        assert rig.table.count_free() == 1


def test_streams_that_wait_for_the_speaker_model_are_not_idle():
    """Up to a limit; those without speakers do not wait for it."""
    board, clock = DrainBoard(slot_count(3)), Clock()
    table = StreamTable(3, SlotLedger(slot_count(3)), IDLE_S, clock, board, speaker_streams=2)
    for name in ("waits", "plain"):
        table.open(name, has_speakers=name == "waits")
    board._cells[4] += int(1e9 * (IDLE_S + 1))  # its steps since then
    clock.now += IDLE_S + 2
    assert (table.count_free(), table.live_streams, table.is_open("waits")) == (2, 1, True)
    clock.now += IDLE_S
    assert not table.is_open("waits")
    table.open("waits", has_speakers=True)
    board._cells[4] += int(1e9 * 1000)
    clock.now += 301 + IDLE_S
    assert not table.is_open("waits")
