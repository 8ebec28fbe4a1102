"""KServe over gRPC on real sockets: streams and their ids, responses, and what is rejected."""

import asyncio
import json
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
import tritonclient.grpc as blocking
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from client.tests.helpers.fakes import confidence, word
from gateway.tests.helpers.memory import freed_at_once
from gateway.tests.kserve.conftest import KEYS, MAX_STREAMS, headers
from penstock_gateway.errors import GatewayError
from penstock_gateway.kserve import service
from penstock_gateway.kserve.errors import code_of
from penstock_gateway.kserve.model import DATATYPES
from penstock_gateway.kserve.request import InferRequest
from penstock_gateway.kserve.service import KServeService, _Call
from penstock_gateway.security.keys import ANONYMOUS

pytestmark = pytest.mark.anyio
Code = grpc.StatusCode
WORD_SAMPLES = 800
WITHIN = ("SEGMENT", "TEXT", "IS_FINAL")


def request(words=1, stream_id="s", outputs=(), start=False, end=False, **parameters):
    """The arguments of an inference."""
    audio = triton.InferInput("AUDIO", [1, words * WORD_SAMPLES], "FP32")
    audio.set_data_from_numpy(np.full((1, words * WORD_SAMPLES), 0.25, np.float32))
    return {
        "model_name": "asr", "inputs": [audio], "outputs": [triton.InferRequestedOutput(name) for name in outputs],
        "sequence_id": stream_id, "sequence_start": start, "sequence_end": end, "parameters": parameters,
    }  # fmt: skip


def text(words):
    return " ".join(map(word, range(words)))


def values(result, names=WITHIN):
    found = []
    for name in names:
        (row,) = result.as_numpy(name).tolist()
        found.append([one.decode() if isinstance(one, bytes) else one for one in row])
    return found


@pytest.fixture
async def client(serve, server):
    """tritonclient's, of a gateway before `server`."""
    async with serve(server, keys=KEYS) as served, triton.InferenceServerClient(served.sockets.grpc_address) as client:
        yield client


async def rejection(awaitable):
    """The status and the code of a rejected call."""
    with pytest.raises(InferenceServerException) as caught:
        await awaitable
    return caught.value.status(), caught.value.message().partition(":")[0]


async def stream(client, requests, key="one"):
    """The text or the code of the error that each request of a call gets."""

    async def send():
        for each in requests:
            yield each

    found = []
    async for result, error in client.stream_infer(send(), headers=headers(key)):
        found.append(error.message().partition(":")[0] if error else values(result, ["TEXT"])[0][0])
    return found


async def test_what_the_model_offers(client, server):
    assert await client.is_server_live(headers()) and await client.is_server_ready(headers())
    assert await client.is_model_ready("asr", "1", headers())
    assert (await client.get_server_metadata(headers())).name == "penstock-gateway"
    metadata = await client.get_model_metadata("asr", headers=headers())
    assert [(one.name, one.datatype) for one in metadata.inputs] == [("AUDIO", "FP32")]
    assert {one.name: one.datatype for one in metadata.outputs} == DATATYPES
    config = (await client.get_model_config("asr", headers=headers())).config
    published = {name: value.string_value for name, value in config.parameters.items()}
    assert published == server.batch.recognizer.server_parameters
    assert await rejection(client.get_model_config("features", headers=headers())) == (
        "StatusCode.NOT_FOUND",
        "MODEL_NOT_FOUND",
    )


async def test_a_stream_of_single_requests(client):
    first = await client.infer(**request(2, start=True), request_id="7", headers=headers())
    assert (first.get_response().id, first.get_response().model_version) == ("7", "1")
    assert [output.name for output in first.get_response().outputs] == list(DATATYPES)
    assert values(first) == [[3], [text(2)], [False]]
    words = values(first, ["WORDS", "WORD_START_MS", "WORD_END_MS", "WORD_CONFIDENCE", "TOKENS", "TIMESTAMPS"])
    assert words == [[word(0)], [0], [50], [confidence(0)], [0, 1], [0, 2]]
    assert values(first, ["AUDIO_PROCESSED", "LANGUAGE", "LIST_COUNTS"]) == [[pytest.approx(0.1)], ["en-US"], [1, 2, 0]]
    unchanged = await client.infer(**request(0), headers=headers())
    assert values(unchanged) == [[3], [text(2)], [False]]
    assert values(unchanged, ["WORDS", "TOKENS", "LIST_COUNTS"]) == [[], [], [0, 0, 0]]
    ended = await client.infer(**request(1, outputs=("TEXT", "IS_FINAL"), finalize=True), headers=headers())
    assert [output.name for output in ended.get_response().outputs] == ["TEXT", "IS_FINAL"]
    assert values(ended, ["TEXT", "IS_FINAL"]) == [[text(3)], [True]]
    assert values(await client.infer(**request(0), headers=headers())) == [[4], [""], [False]]
    assert values(await client.infer(**request(1, end=True), headers=headers())) == [[4], [text(1)], [True]]
    for late in ({}, {"finalize": True}):
        rejected = await rejection(client.infer(**request(0, **late), headers=headers()))
        assert rejected == ("StatusCode.NOT_FOUND", "STREAM_NOT_OPEN")


async def test_alternatives_of_a_whole_recording(client):
    whole = request(1, start=True, end=True, decoder="alsd", n_best=2)
    result = await client.infer(**whole, headers=headers())
    texts, scores, words = values(result, ["ALTERNATIVES", "ALTERNATIVE_SCORES", "ALTERNATIVE_WORDS"])
    assert (texts, scores) == ([f"{text(1)} (0)", f"{text(1)} (1)"], [-0.5, -1.5])
    assert json.loads(words[1]) == [[text(1), 0, 80, 0.25]]


async def test_requests_of_a_call_are_answered_in_their_order(client):
    requests = [
        request(1, "a", start=True), request(2, 9, start=True), request(1, "missing"), request(1, "a"), request(3, 9),
        request(1, "a", finalize="yes"), request(1, "a", end=True), *[request(1, 9) for _ in range(100)],
    ]  # fmt: skip
    found = await stream(client, requests)
    assert found[:7] == [text(1), text(2), "STREAM_NOT_OPEN", text(2), text(5), "OPTION_INVALID", text(3)]
    assert found[7:] == [text(6 + number) for number in range(100)]


async def test_keys_do_not_meet_in_an_id(client):
    await client.infer(**request(1, "same", start=True), headers=headers("one"))
    assert (await rejection(client.infer(**request(1, "same"), headers=headers("two"))))[1] == "STREAM_NOT_OPEN"
    await client.infer(**request(2, "same", start=True), headers=headers("two"))
    assert values(await client.infer(**request(1, "same"), headers=headers("one")), ["TEXT"]) == [[text(2)]]
    assert values(await client.infer(**request(1, "same", end=True), headers=headers("two")), ["TEXT"]) == [[text(3)]]
    assert await rejection(client.infer(**request(1, "same"))) == ("StatusCode.UNAUTHENTICATED", "INVALID_API_KEY")


async def test_a_number_and_its_text_are_two_ids(client):
    await client.infer(**request(1, 5, start=True), headers=headers())
    await client.infer(**request(2, "5", start=True), headers=headers())
    assert values(await client.infer(**request(1, 5), headers=headers()), ["TEXT"]) == [[text(2)]]


async def test_a_start_on_an_open_id_begins_anew(client, server, until):
    for words in (1, 2):
        result = await client.infer(**request(words, start=True), headers=headers())
        assert values(result, ["TEXT"]) == [[text(words)]]
    await until(lambda: len(server.batch.recognizer.received) == 1)


async def test_a_rejected_request_has_no_effect_but_the_last_one(client, server, until):
    await client.infer(**request(1, start=True), headers=headers())
    loud = request(1)
    loud["inputs"][0].set_data_from_numpy(np.full((1, WORD_SAMPLES), 3, np.float32))
    for parameters in ({}, {"sequence_start": True}):
        assert (await rejection(client.infer(**loud | parameters, headers=headers())))[1] == "AUDIO_INVALID"
    assert values(await client.infer(**request(1), headers=headers()), ["TEXT"]) == [[text(2)]]
    assert (await rejection(client.infer(**loud | {"sequence_end": True}, headers=headers())))[1] == "AUDIO_INVALID"
    assert (await rejection(client.infer(**request(1), headers=headers())))[1] == "STREAM_NOT_OPEN"
    await until(lambda: not server.batch.recognizer.received)


@pytest.mark.parametrize("wait_s", [0, 0, 0.001, 0.05])
async def test_a_cancelled_request_counts_whole_or_its_stream_is_lost(serve, server, wait_s):
    """Cancelled before it is read or later; streams of other connections go on."""

    def run(address):
        own = [("grpc.use_local_subchannel_pool", 1)]
        with (
            blocking.InferenceServerClient(address) as client,
            blocking.InferenceServerClient(address, channel_args=own) as other,
        ):
            other.infer(**request(1, "other", start=True), headers=headers())
            client.infer(**request(1, start=True), headers=headers())
            call = client.async_infer(callback=lambda **_: None, **request(1), headers=headers())
            time.sleep(wait_s)
            call.cancel()
            assert values(other.infer(**request(1, "other", end=True), headers=headers()), ["TEXT"]) == [[text(2)]]
            try:
                client.infer(**request(1), headers=headers())
                return values(client.infer(**request(1, end=True), headers=headers()), ["TEXT"])[0][0]
            except InferenceServerException as error:
                return error.message().partition(":")[0]

    async with serve(server, keys=KEYS) as served:
        found = await asyncio.to_thread(run, served.sockets.grpc_address)
        assert found in ("STREAM_LOST", text(4))


async def test_a_request_that_is_cancelled_before_it_is_read_loses_streams_of_its_client(serve, server, monkeypatch):
    """A client behind a proxy, which sends the calls of several over one connection."""

    def context(client):
        metadata = [("x-forwarded-for", client)] if client else []
        return SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:1", invocation_metadata=lambda: metadata)

    @asynccontextmanager
    async def cancelled(*_):
        raise asyncio.CancelledError
        yield

    monkeypatch.setattr(service, "only_message", cancelled)
    monkeypatch.setattr(service, "call_key", lambda: ANONYMOUS)

    def made(stream_id, start=False):
        samples = np.full(WORD_SAMPLES, 0.25, np.float32)
        return InferRequest(
            sequence_id=stream_id, is_start=start, is_end=False, options={}, samples=samples, outputs=("TEXT",)
        )

    async with serve(server, keys=KEYS) as served:
        kserve = KServeService(SimpleNamespace(streams=served.streams))
        sequences = kserve._sequences
        for stream_id, client in ((1, "a"), (2, "b"), (3, "")):
            await sequences.infer(made(stream_id, start=True), ANONYMOUS, service._client(context(client)))
        with pytest.raises(asyncio.CancelledError):
            await kserve._infer(context("a"))
        for code in ("STREAM_LOST", "STREAM_NOT_OPEN"):
            with pytest.raises(GatewayError) as caught:
                await sequences.infer(made(1), ANONYMOUS, "a")
            assert code_of(caught.value) == code
        for stream_id in (2, 3):
            assert [result.text for result in await sequences.infer(made(stream_id), ANONYMOUS, "b")] == [text(2)]


@pytest.mark.parametrize("steps", range(1, 8))
async def test_a_client_that_vanishes_as_its_call_ends_frees_its_streams(monkeypatch, steps):
    """gRPC reports the end of the requests, and the vanished client any number of steps of the loop later."""
    ended = []

    async def end_call(call):
        ended.append(call)

    async def read():
        return grpc.aio.EOF

    service = KServeService(SimpleNamespace(streams=None))
    monkeypatch.setattr(service._sequences, "end_call", end_call)
    call = _Call(SimpleNamespace(read=read))
    handler = asyncio.create_task(service._exchange(call, None))
    for _ in range(steps):
        await asyncio.sleep(0)
    handler.cancel()
    await asyncio.wait([handler])
    assert ended == [call]


async def test_a_stream_ends_with_its_call(client, server, until):
    assert await stream(client, [request(1, start=True), request(1)]) == [text(1), text(2)]
    assert (await rejection(client.infer(**request(1), headers=headers())))[1] == "STREAM_NOT_OPEN"
    await until(lambda: not server.batch.recognizer.received)


async def test_a_stream_goes_on_where_its_latest_request_was_no_part_of_the_call(client):
    async def send():
        yield request(1, start=True)
        await has_moved.wait()

    has_moved = asyncio.Event()
    call = client.stream_infer(send(), headers=headers())
    await anext(call)
    await client.infer(**request(1), headers=headers())
    has_moved.set()
    assert [each async for each in call] == []
    assert values(await client.infer(**request(1), headers=headers()), ["TEXT"]) == [[text(3)]]


async def test_calls_of_a_key_are_limited(client):
    async def silence():
        await asyncio.Event().wait()
        yield

    calls = [client.stream_infer(silence(), headers=headers()) for _ in range(2 * MAX_STREAMS + 9)]
    done, _ = await asyncio.wait([asyncio.ensure_future(anext(call)) for call in calls], return_when="FIRST_COMPLETED")
    with pytest.raises(grpc.aio.AioRpcError, match="STREAM_LIMIT: all 16 calls of ModelStreamInfer of"):
        await done.pop()
    for call in calls:
        call.cancel()


async def test_a_stream_is_lost_once(client, server):
    await client.infer(**request(1, start=True), headers=headers())
    server.close()
    assert await rejection(client.infer(**request(1), headers=headers())) == ("StatusCode.INTERNAL", "STREAM_LOST")
    assert (await rejection(client.infer(**request(1), headers=headers())))[1] == "STREAM_NOT_OPEN"


async def test_a_rejected_request_is_freed_at_once(client):
    large = request(words=600)
    await rejection(client.infer(**request(), headers=headers()))
    with freed_at_once(600 * WORD_SAMPLES * 4):
        for _ in range(5):
            await rejection(client.infer(**large, headers=headers()))
