"""Replicas that are alive, and that are the same: probes with an empty stream, and fingerprints."""

import asyncio
from types import SimpleNamespace

import pytest

from client.tests.helpers.event_loop import until
from client.tests.helpers.fakes import RejectionError
from penstock_gateway.config import ReplicaGroup
from penstock_gateway.stream.replicas import Group, Replica


@pytest.fixture
async def group_of(servers):
    made = []

    def make(*found):
        hosts = ("localhost" if each in found[:place] else "127.0.0.1" for place, each in enumerate(found))
        addresses = tuple(f"{host}:{server.port}" for host, server in zip(hosts, found, strict=True))
        made.append(Group(ReplicaGroup("", addresses), 60.0))
        return made[-1]

    yield make
    for group in made:
        await group.close()


async def test_a_replica_is_probed_with_an_empty_stream_that_leaves_none(servers, group_of):
    server = servers()
    group = group_of(server)
    await group.probe()
    await group.probe()
    assert server.batch.probes == 2
    assert not server.batch.recognizer.received
    assert group.candidates() == group.replicas


async def test_addresses_of_one_server_are_one_replica(servers, group_of, caplog):
    """The first, and the others while it fails."""
    caplog.set_level("INFO")
    one, two, old = servers(penstock_server_id="1"), servers(penstock_server_id="2"), servers()
    group = group_of(one, one, two, old, old)
    first, spare, *others = group.replicas
    for _ in range(2):
        await group.probe()
        assert {*group.candidates()} == {first, *others}
    assert [line for line in caplog.messages if "used while" in line] == [
        f"replica localhost:{one.port} is the server of 127.0.0.1:{one.port}: used while that fails"
    ]
    first.note_down("lost")
    assert {*group.candidates()} == {spare, *others}
    await group.probe()
    assert {*group.candidates()} == {first, *others}
    one.batch.recognizer.server_parameters["penstock_server_id"] = "3"  # another server at one of the addresses
    await spare.client.close()
    spare.client = type(spare.client)(spare.address)
    await group.probe()
    assert {*group.candidates()} == {first, spare, *others}


async def test_a_replica_with_dead_models_takes_no_streams(servers, group_of):
    """Triton still tells what they offer."""
    dead, alive = servers(), servers()
    group = group_of(dead, alive)
    await group.probe()
    assert len(group.candidates()) == 2

    def answer(*_):
        raise RejectionError("in ensemble 'asr_batch', Stub process 'encoder_0_0' is not healthy.")

    dead.batch.answer = answer
    await group.probe()
    assert group.candidates() == [group.replicas[1]]
    del dead.batch.answer
    await group.probe()
    assert len(group.candidates()) == 2


async def test_a_replica_is_up_while_the_probe_of_another_is_unanswered(servers, group_of):
    group = group_of(servers(), servers())
    await group.probe()
    black_hole, alive = group.replicas
    for replica in group.replicas:
        replica.note_down("the network is down")
    gives_up = asyncio.Event()

    async def unanswered():
        await gives_up.wait()

    black_hole.probe = unanswered
    probing = asyncio.create_task(group.probe())
    await until(lambda: group.candidates() == [alive])
    assert not probing.done()
    gives_up.set()
    await probing
    assert group.candidates() == [alive]


async def test_a_full_or_draining_replica_is_alive_and_takes_no_streams(servers, group_of):
    server = servers()
    group = group_of(server)
    server.batch.recognizer.max_streams = 0
    await group.probe()
    assert group.is_up and not group.candidates()


async def test_new_streams_go_to_the_fingerprint_that_came_last(servers, group_of):
    old, other, new = servers(2, penstock_fingerprint="1"), servers(8, penstock_fingerprint="1"), servers(2)
    new.batch.recognizer.server_parameters["penstock_fingerprint"] = "2"
    group = group_of(old, other, new)
    newest = group.replicas[2]
    probe, newest.probe = newest.probe, lambda: asyncio.sleep(0)
    await group.probe()
    assert {replica.information.fingerprint for replica in group.candidates()} == {"1"}
    newest.probe = probe
    await group.probe()
    assert group.candidates()[0] is newest
    assert group.model.parameters["penstock_fingerprint"] == "2"
    newest.live = 2
    assert newest not in group.candidates() and len(group.candidates()) == 2


async def test_streams_start_on_the_better_of_two_random_replicas(servers, group_of):
    group = group_of(*(servers() for _ in range(3)))
    await group.probe()
    for replica, live in zip(group.replicas, (1, 2, 3), strict=True):
        replica.live = live
    firsts = {group.candidates()[0] for _ in range(200)}
    assert firsts == {*group.replicas[:2]}


def test_a_replica_that_was_never_reachable_is_named_every_minute(caplog, monkeypatch):
    caplog.set_level("INFO")
    times_s = iter(range(0, 200, 2))
    monkeypatch.setattr("penstock_gateway.stream.replicas.time", SimpleNamespace(monotonic=lambda: next(times_s)))
    replica = Replica("127.0.0.1:1", 1.0)
    for _ in range(100):
        replica.note_down("connection refused")
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "WARNING", "WARNING"]
    assert all("127.0.0.1:1 is" in each and "connection refused" in each for each in caplog.messages)


@pytest.mark.parametrize("ends_meanwhile", [False, True])
async def test_a_probe_does_not_close_a_replica_that_a_stream_has_left_since(
    servers, group_of, monkeypatch, ends_meanwhile
):
    group = group_of(servers())
    await group.probe()
    (replica,) = group.replicas
    found, replica.live = await replica.client.probe(), 1

    async def probe():
        if ends_meanwhile:
            replica.release()
        return found._replace(is_full=True)

    monkeypatch.setattr(replica.client, "probe", probe)
    await replica.probe()
    assert replica.has_room == ends_meanwhile
