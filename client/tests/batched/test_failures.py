"""Rejected streams and requests, and lost servers: whose streams fail, and which are ended on the server."""

import asyncio
import threading

import pytest

from client.tests.helpers.batched_client import (
    GEOMETRY,
    WAIT_S,
    connected,
    noise,
    results_of,
    rows_of,
    transcript,
    whole_text,
)
from client.tests.helpers.event_loop import until
from client.tests.helpers.fake_servers import GrpcServer
from client.tests.helpers.fakes import RejectionError
from penstock_client import (
    ConnectionLostError,
    ServerFullError,
    ServerReplyError,
    ServerUnreachableError,
    StreamClosedError,
    StreamError,
    StreamNotOpenError,
)
from penstock_client.batched import server_offer
from penstock_client.batched.client import BatchedClient
from penstock_client.batched.rows import END, START
from penstock_client.connection import ConnectionOptions, Endpoint


async def test_a_rejected_stream_fails_alone(server, recognizer):
    recognizer.max_streams = 1

    async with connected(server) as client:
        first, second = await client.open_stream(), await client.open_stream()
        await first.accepted()
        with pytest.raises(ServerFullError, match=r"STREAM_LIMIT: .*rejected: all 1 slots are taken"):
            await second.accepted()
        with pytest.raises(ServerFullError):
            await second.push(noise(5000))
        with pytest.raises(ServerFullError):
            await results_of(second)
        await first.push(noise(1600))
        await first.finish()
        assert transcript(await results_of(first)).text.split() == whole_text(1600)
    assert rows_of(server, 2) == [(0, START)]  # nothing was opened, so nothing is ended


async def test_a_stream_that_the_server_dropped_is_not_ended_again(server, recognizer):
    async with connected(server) as client, await client.open_stream() as stream:
        await stream.accepted()
        recognizer.received.clear()
        await stream.push(noise(700))
        with pytest.raises(StreamNotOpenError):
            await results_of(stream)
    assert (0, END) not in rows_of(server, 1)


@pytest.mark.parametrize("is_first_model", [True, False])
@pytest.mark.parametrize("rejected", [START, 0, END])
async def test_streams_of_a_request_that_is_rejected_whole_are_ended(server, recognizer, rejected, is_first_model):
    """A later model's rejection leaves streams open, or closed, that its first one opened or closed."""
    answer, rejections = server.batch.answer, []

    def reject_once(client, tensors):
        is_chosen = not rejections and rejected in tensors["ROWS"][0, :, 2]
        found = None if is_chosen and is_first_model else answer(client, tensors)
        if is_chosen:
            rejections.append(tensors)
            raise RejectionError("in ensemble 'asr_batch', no memory for the outputs")
        return found

    server.batch.answer = reject_once

    async with connected(server) as client:
        stream = await client.open_stream()
        with pytest.raises(StreamError, match="no memory for the outputs"):
            await stream.accepted()
            await stream.push(noise(700))
            await stream.finish()
            await results_of(stream)
        async with await client.open_stream() as other:
            await other.finish()
            await results_of(other)
        assert recognizer.received == {}
    assert len(rejections) == 1


async def test_a_lost_server_fails_all_streams_and_the_next_one_connects_anew(server, recognizer):
    async with connected(server) as client:
        streams = [await client.open_stream() for _ in range(4)]
        for stream in streams:
            await stream.accepted()
        reading = [asyncio.create_task(results_of(stream)) for stream in streams]
        port = server.port
        await asyncio.to_thread(server.close)
        for read in reading:
            with pytest.raises(ConnectionLostError, match=f"lost the connection to the server at 127.0.0.1:{port}"):
                await read
        with pytest.raises(ConnectionLostError):
            await streams[0].push(noise(700))
        with pytest.raises(ServerUnreachableError):
            await client.open_stream()

        again = GrpcServer(recognizer)
        try:
            client._servers[0].endpoint = Endpoint(f"127.0.0.1:{again.port}", model="asr_batch")
            async with await client.open_stream() as stream:
                await stream.push(noise(900))
                await stream.finish()
                assert transcript(await results_of(stream)).text.split() == whole_text(900)
        finally:
            await asyncio.to_thread(again.close)


async def test_a_server_without_the_model(server):
    async with connected(server) as client:
        client._servers[0].endpoint = Endpoint(client.url, model="other")
        with pytest.raises(ServerReplyError, match="has no model 'other'"):
            await client.open_stream()


async def test_streams_opened_meanwhile_share_one_attempt_to_connect(server, monkeypatch):
    """Also its failure: an attempt of each, one after the other, would keep the last one waiting for minutes."""
    attempts, may_end = [], threading.Event()

    def read(endpoint, is_over):
        attempts.append(endpoint)
        may_end.wait(WAIT_S)
        if len(attempts) == 1:
            raise ServerUnreachableError(endpoint.url, "it is down")
        return GEOMETRY

    monkeypatch.setattr(server_offer, "read_parameters", read)

    async with connected(server) as client:
        opening = [asyncio.create_task(client.open_stream()) for _ in range(5)]
        await until(lambda: attempts)
        opening.pop().cancel()  # the others still wait for it
        await asyncio.sleep(0)
        may_end.set()
        for task in opening:
            with pytest.raises(ServerUnreachableError, match="it is down"):
                await task
        assert len(attempts) == 1
        streams = await asyncio.gather(*(client.open_stream() for _ in range(5)))
        assert len(attempts) == 2
        for stream in streams:
            await stream.accepted()


async def test_a_client_closed_while_it_connects(server, monkeypatch):
    monkeypatch.setattr(server_offer, "read_parameters", lambda endpoint, is_over: is_over.wait(WAIT_S) and GEOMETRY)

    client = BatchedClient(f"127.0.0.1:{server.port}")
    opening = asyncio.create_task(client.open_stream())
    await asyncio.sleep(0)
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0)
    await closing
    with pytest.raises(StreamClosedError, match="the client is closed"):
        await opening


@pytest.mark.parametrize("name", ["wait_for_slot_s", "reconnect_s"])
def test_options_of_other_clients_are_rejected(name):
    with pytest.raises(ValueError, match=f"{name} is set, but BatchedClient does not have it"):
        BatchedClient("localhost:8001", connection_options=ConnectionOptions(**{name: 1.0}))
