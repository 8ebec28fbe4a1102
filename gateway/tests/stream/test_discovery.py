"""Replicas of a DNS name or a file: they come and go, and what cannot be read changes nothing."""

import asyncio
import os
import socket
import threading
from functools import partial

import pytest

from client.tests.helpers.event_loop import until
from client.tests.helpers.fake_fleet import speech
from gateway.tests.helpers.stream_calls import events_of, opened
from penstock_gateway import limits
from penstock_gateway.config import ReplicaGroup, parse_replicas
from penstock_gateway.security import files
from penstock_gateway.stream import discovery, replicas
from penstock_gateway.stream.discovery import Discovery


def test_names_and_files_are_replicas():
    (group,) = parse_replicas("dns:asr.local:8001, file:/etc/replicas,c:1")
    assert group.addresses == ("dns:asr.local:8001", "file:/etc/replicas", "c:1")
    for wrong in ("dns:asr.local", "dns::8001", "dns:a:0", "http://10.0.0.7:8001", "a:\N{ARABIC-INDIC DIGIT EIGHT}"):
        with pytest.raises(ValueError, match="is not HOST:PORT"):
            parse_replicas(wrong)


async def test_a_file_is_read_again(tmp_path):
    file = tmp_path / "replicas"
    file.write_text("a:1\n\n# of rack 2\nb:2  # new\na:1\n")
    found = Discovery([f"file:{file}", "b:2", "c:3"])
    assert await found.addresses(0.0) == ["a:1", "b:2", "c:3"]
    other = tmp_path / "other"
    other.write_text("d:4\n")
    os.replace(other, file)
    assert await found.addresses(1.0) == ["a:1", "b:2", "c:3"], "it may be written just now"
    assert await found.addresses(2.0) == ["d:4", "b:2", "c:3"]
    file.write_bytes(b"\xef\xbb\xbfe:5\r\n")
    assert [await found.addresses(now_s) for now_s in (3.0, 4.0)][1] == ["e:5", "b:2", "c:3"]


async def test_a_file_system_that_takes_long_holds_up_no_other_work(tmp_path, monkeypatch):
    begun, goes_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def read_file(path):
        loop.call_soon_threadsafe(begun.set)
        assert goes_on.wait(60)
        return b"a:1"

    monkeypatch.setattr(files, "read_file", read_file)
    reading = asyncio.create_task(Discovery(["file:x"]).addresses(0.0))
    await asyncio.wait_for(begun.wait(), 60)
    goes_on.set()
    assert await reading == ["a:1"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# none\n",
        "a:1\nnonsense\n",
        "a:1\nhttp://a:1\n",
        "a:1\n\ufeffb:2\n",
        b"\xff\xfe",
        None,
        os.mkfifo,
        os.mkdir,
    ],
    ids=repr,
)
async def test_a_broken_file_changes_nothing_and_is_named_once(tmp_path, caplog, text):
    file = tmp_path / "replicas"
    file.write_text("a:1\n")
    noted = []
    found = Discovery([f"file:{file}"], note_file=lambda *note: noted.append(note))
    assert await found.addresses(0.0) == ["a:1"]
    if text is None or callable(text):
        file.unlink()
        if text is not None:
            text(file)
    else:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    for now_s in (1.0, 2.0, 3.0):
        assert await found.addresses(now_s) == ["a:1"]
    (line,) = caplog.messages
    assert line.startswith(f"file:{file}: ") and line.endswith("1 addresses stay as they are")
    if callable(text):
        file.rename(tmp_path / "other")
    file.write_text("b:2\n")
    assert [await found.addresses(now_s) for now_s in (4.0, 5.0)] == [["a:1"], ["b:2"]]
    assert noted.count((f"file:{file}", False)) == 1 and noted[-1] == (f"file:{file}", True)


async def test_a_name_is_queried_every_five_seconds(caplog):
    answers = [["10.0.0.1:8001", "10.0.0.2:8001"], socket.gaierror(-3, "Temporary failure"), ["[fd00::3]:8001"]]
    queries = []

    async def resolve(name, port):
        queries.append((name, port))
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    found = Discovery(["dns:asr.local:8001"], resolve)
    first = await found.addresses(100.0)
    assert first == ["10.0.0.1:8001", "10.0.0.2:8001"]
    assert await found.addresses(104.0) == first and len(queries) == 1
    assert await found.addresses(105.0) == first
    assert "Temporary failure" in caplog.text
    assert await found.addresses(110.0) == ["[fd00::3]:8001"]
    assert queries == [("asr.local", 8001)] * 3


async def test_a_name_has_all_its_addresses():
    assert "127.0.0.1:8001" in await discovery.resolve("localhost", 8001)


async def test_a_name_with_fifty_addresses(fleet, open_streams, monkeypatch):
    """At most of them no server listens. Then one is left, and live streams of the others go on."""
    servers = [fleet(), fleet()]
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    answer = [f"127.0.0.{host}:{port}" for host in range(2, 50)] + [server.url for server in servers]

    async def resolve(name, port):
        return answer

    monkeypatch.setattr(replicas, "Discovery", partial(Discovery, resolve=resolve))
    monkeypatch.setattr(limits, "TICK_S", 0.01)
    async with open_streams(groups=(ReplicaGroup("", ("dns:asr.local:8001",)),)) as streams:
        (group,) = streams._groups
        assert len(group.replicas) == 50
        await until(lambda: len(group.candidates()) == 2)
        live = [await opened(streams) for _ in range(4)]
        assert sum(len(server.batch.streams) for server in servers) == 4
        answer = [servers[0].url]
        await until(lambda: [replica.address for replica in group.candidates()] == answer)
        for stream in live:
            await stream.push(speech(1, 2, 3))
            await stream.finish()
            assert (await events_of(stream))[-1].text == "w1 w2 w3"
        await until(lambda: [replica.address for replica in group.replicas] == answer)


async def test_a_defect_in_one_group_ends_no_round(fleet, open_streams, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(limits, "TICK_S", 0.01)
    monkeypatch.setattr(limits, "PROBE_S", 0.01)
    server, other, files = fleet(), fleet(), [tmp_path / "one", tmp_path / "two"]
    for file in files:
        file.write_text(server.url)
    groups = tuple(ReplicaGroup(file.name, (f"file:{file}",)) for file in files)
    async with open_streams(groups=groups) as streams:
        for defect in ("discover", "probe"):
            with monkeypatch.context() as patch:
                patch.setattr(streams._groups[0], defect, lambda *_, defect=defect: _fail(defect))
                await until(lambda defect=defect: f"RuntimeError: {defect}" in caplog.text)
        for file in files:
            file.write_text(other.url)
        for group in streams._groups:
            await until(lambda group=group: [each.address for each in group.candidates()] == [other.url])


async def test_a_wrong_file_shows_in_the_metrics_from_the_start(fleet, open_streams, tmp_path):
    server, file = fleet(), tmp_path / "replicas"
    file.write_text("nonsense")
    async with open_streams(groups=(ReplicaGroup("", (f"file:{file}",)),)) as streams:
        value = partial(streams._metrics.registry.get_sample_value, labels={"file": f"file:{file}"})
        assert value("penstock_gateway_file_reload_successful") == 0
        file.write_text(server.url)
        await until(lambda: value("penstock_gateway_file_reload_successful") == 1)
        assert value("penstock_gateway_file_rejections_total") == 1


async def _fail(text):
    raise RuntimeError(text)


async def test_streams_live_on_while_their_address_is_gone(fleet, open_streams, tmp_path):
    first, second, file = fleet(max_streams=9), fleet(), tmp_path / "replicas"
    file.write_text(first.url)
    async with open_streams(groups=(ReplicaGroup("", (f"file:{file}",)),)) as streams:
        live = await opened(streams)
        file.write_text(second.url)
        (group,) = streams._groups
        await until(lambda: [replica.address for replica in group.candidates()] == [second.url])
        await live.push(speech(1, 2, 3))
        other = await opened(streams)
        assert len(first.batch.streams) == len(second.batch.streams) == 1
        await live.finish()
        assert (await events_of(live))[-1].text == "w1 w2 w3"
        await until(lambda: [replica.address for replica in group.replicas] == [second.url])
        file.write_text(f"{first.url}\n{second.url}\n{first.url}\n")  # one of them twice
        await until(lambda: len(group.candidates()) == 2)
        await other.cancel()
