"""KServe over HTTP on real sockets: JSON and binary tensors, the form of errors, what needs no key."""

import asyncio
import json
import tracemalloc

import httpx2
import numpy as np
import pytest
import tritonclient.http.aio as triton
from tritonclient.http import InferenceServerClient

from client.tests.helpers.fakes import word
from gateway.tests.helpers.memory import freed_at_once
from gateway.tests.kserve.conftest import KEYS, headers
from penstock_gateway.errors import GatewayError
from penstock_gateway.kserve import routes
from penstock_gateway.kserve.http_wire import read_body
from penstock_gateway.kserve.model import DATATYPES
from penstock_gateway.security.budget import Budget

pytestmark = pytest.mark.anyio
INFER = "/v2/models/asr/infer"
LENGTH = "Inference-Header-Content-Length"


def text(words):
    return " ".join(map(word, range(words)))


def body(words=1, stream_id="s", **changes):
    """A request in JSON; `changes` replace its fields, None removes them."""
    audio = {"name": "AUDIO", "shape": [1, 800 * words], "datatype": "FP32", "data": [0.25] * 800 * words}
    made = {"id": "7", "inputs": [audio], "parameters": {"sequence_id": stream_id, "sequence_start": True}}
    made |= {"outputs": [{"name": "TEXT"}]} | changes
    return {name: value for name, value in made.items() if value is not None}


@pytest.fixture
async def client(serve, server):
    async with (
        serve(server, keys=KEYS) as served,
        httpx2.AsyncClient(base_url=served.sockets.url, timeout=60) as client,
    ):
        client.headers = headers()
        yield client


async def post(client, content, **more):
    """The status and the reply, or the code of the error."""
    content = json.dumps(content).encode() if isinstance(content, dict) else content
    response = await client.post(INFER, content=content, headers=headers() | more)
    reply = response.json()
    return response.status_code, reply["error"].partition(":")[0] if "error" in reply else reply


async def test_a_stream_in_json(client):
    status, reply = await post(client, body(2))
    output = {"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": [text(2)]}
    assert (status, reply) == (200, {"id": "7", "model_name": "asr", "model_version": "1", "outputs": [output]})
    ending = {"sequence_id": "s", "sequence_end": True}
    status, reply = await post(client, body(1, parameters=ending, outputs=None, id=None))
    assert [one["name"] for one in reply["outputs"]] == list(DATATYPES)
    found = {one["name"]: one["data"] for one in reply["outputs"]}
    assert (found["TEXT"], found["IS_FINAL"], found["WORD_START_MS"]) == ([text(3)], [True], [50, 100])
    assert found["AUDIO_PROCESSED"] == [np.float32(0.15).item()]
    assert await post(client, body(parameters=ending)) == (404, "STREAM_NOT_OPEN")


@pytest.mark.parametrize("is_binary", [True, False])
async def test_tritonclient(serve, server, is_binary):
    async with (
        serve(server, keys=KEYS) as served,
        triton.InferenceServerClient(f"127.0.0.1:{served.sockets.http_port}") as client,
    ):
        audio = triton.InferInput("AUDIO", [1, 1600], "FP32")
        audio.set_data_from_numpy(np.full((1, 1600), 0.25, np.float32), binary_data=is_binary)
        outputs = [triton.InferRequestedOutput(name, binary_data=is_binary) for name in ("TEXT", "TOKENS", "IS_FINAL")]
        for wanted in (outputs, None):
            reply = await client.infer(
                "asr", [audio], outputs=wanted, sequence_id=9, sequence_start=True, headers=headers()
            )
            (found,) = reply.as_numpy("TEXT")[0]
            assert (found.decode() if isinstance(found, bytes) else found) == text(2)
            assert reply.as_numpy("TOKENS").tolist() == [[0, 1]] and reply.as_numpy("IS_FINAL").tolist() == [[False]]
        assert (await client.get_model_config("asr", headers=headers()))["parameters"]["model"] == {
            "string_value": "fake"
        }
        assert len((await client.get_model_metadata("asr", "1", headers()))["outputs"]) == len(DATATYPES)
        assert (await client.get_server_metadata(headers()))["name"] == "penstock-gateway"
        assert await client.is_model_ready("asr", headers=headers())
        assert await client.is_server_live() and await client.is_server_ready()  # without a key


async def test_only_health_needs_no_key(client):
    client.headers = {}
    for path in ("/health", "/v2/health/live", "/v2/health/ready"):
        assert (await client.get(path)).status_code == 200
    for path in ("/v2", "/v2/models/asr", "/v2/models/asr/ready", "/v2/models/asr/config", "/v2/other"):
        response = await client.get(path)
        assert (response.status_code, response.json()["error"].partition(":")[0]) == (401, "INVALID_API_KEY"), path


async def test_requests_of_one_stream_at_the_same_time_are_all_heard(client, server):
    await post(client, body())
    parameters = {"sequence_id": "s"}
    replies = await asyncio.gather(*(post(client, body(parameters=parameters)) for _ in range(20)))
    texts = [reply["outputs"][0]["data"][0] for _, reply in replies]
    assert sorted(texts, key=len) == [text(2 + number) for number in range(20)]


def on_input(**fields):
    return {"inputs": [body()["inputs"][0] | fields]}


def one_input(**fields):
    return body(inputs=[{"name": "AUDIO", "datatype": "FP32", **fields}])


REJECTED = {
    "no JSON": b"[1",
    "a list": b"[]",
    "deep": b'{"id":' + b"[" * 3000,
    "no inputs": body(inputs=None),
    "two inputs": body(inputs=body()["inputs"] * 2),
    "overflow": one_input(shape=[1, 2**62], data=[]),
    "huge number": one_input(shape=[1, 10**30], data=[]),
    "shape": body(**on_input(shape=[1, 801])),
    "fraction": body(**on_input(shape=[1, 1.5])),
    "datatype": body(**on_input(datatype="INT32")),
    "texts": body(**on_input(data=["x"] * 800)),
    "uneven": one_input(shape=[1, 3], data=[[1], [1, 2]]),
    "numbers and an array": one_input(shape=[1, 2], data=[1, [1]]),
    "a text among numbers": one_input(shape=[1, 2], data=[0.5, "0.5"]),
    "a truth among numbers": one_input(shape=[1, 2], data=[0.5, True]),
    "nothing among numbers": one_input(shape=[1, 2], data=[0.5, None]),
    "deep texts": one_input(shape=[1, 2], data=[[[0.5, "x"]]]),
    "400 digits": one_input(shape=[1, 2], data=[0.5, -(10**400)]),
    "5,000 digits": b'{"inputs":[{"name":"AUDIO","shape":[1,1],"datatype":"FP32","data":[' + b"9" * 5000 + b"]}]}",
    "not a number": one_input(shape=[1, 1], data=[float("nan")]),
    "objects": body(**on_input(data={"a": 1})),
    "infinite": one_input(shape=[1, 1], data=[1e39]),
    "no data": one_input(shape=[1, 0]),
    "binary without bytes": one_input(shape=[1, 2], parameters={"binary_data_size": 8}),
    "shared memory": body(**on_input(parameters={"shared_memory_region": "x", "binary_data_size": 3200})),
    "output": body(outputs=[{"name": "NOPE"}]),
    "name of an output": body(outputs=[{"name": 7}]),
    "classes": body(outputs=[{"name": "TEXT", "parameters": {"classification": 3}}]),
    "parameters": body(parameters=[]),
    "binary output": body(parameters={"sequence_id": "s", "binary_data_output": 1}),
    "list parameter": body(parameters={"sequence_id": "s", "sequence_start": True, "boosted_phrases": ["a"]}),
    "no id": body(parameters={"sequence_start": True}),
}


async def test_what_is_not_of_the_models_form_is_rejected(client, server):
    for name, content in REJECTED.items():
        status, code = await post(client, content)
        assert (status, code) in {(400, f"{kind}_INVALID") for kind in ("REQUEST", "OPTION", "AUDIO")}, (name, code)
    assert not [each for each in server.batch.recognizer.requests if len(each.samples)]
    assert (await post(client, body()))[0] == 200


async def test_arrays_that_would_take_much_memory(client):
    for data in (b"[]," * 20_000, b'"",' * 20_000, b"0," * 600_000):
        content = b'{"inputs":[{"name":"AUDIO","shape":[1,0],"datatype":"FP32","data":[' + data + b"0]}]}"
        assert await post(client, content) == (413, "TOO_LARGE")
    assert await post(client, bytes(14 << 20)) == (413, "TOO_LARGE")


@pytest.mark.parametrize(
    "fields",
    [
        b'"data":[' + b"0," * 2000 + b'"' + b"x" * 2000 + b'"]',
        b'"data":[[' + b"0," * 2000 + b'"' + b"x" * 2000 + b'"]]',
        b'"data":[' + b"true," * 20_000 + b"1e999]",
        b'"shape":[' + b"1.5," * 20_000 + b'1],"data":[]',
    ],
    ids=["texts", "nested", "bools", "shape"],
)
def test_the_memory_for_a_body_grows_with_its_length_alone(fields):
    content = (
        b'{"parameters":{"sequence_id":1},"inputs":[{"name":"AUDIO","datatype":"FP32","shape":[1,1],' + fields + b"}]}"
    )
    tracemalloc.start()
    try:
        with pytest.raises(GatewayError):
            read_body(content, None)
        assert tracemalloc.get_traced_memory()[1] < (1 << 20) + 10 * len(content)
    finally:
        tracemalloc.stop()


async def test_keys_take_turns_at_large_bodies(monkeypatch):
    order, shared = [], routes._Inference(None)
    monkeypatch.setattr(routes, "read_body", lambda body, _: order.append(body))
    one, two = KEYS
    await asyncio.gather(*(shared.read(key.name, None, key) for key in [one] * 16 + [two]))
    assert order.index("two") == 1


async def test_large_bodies_count_as_messages_until_they_are_read(serve, server):
    budget = Budget("memory", 2 << 20, 0.01)
    content = json.dumps(
        body(parameters={"sequence_id": "s", "sequence_start": True, "boosted_phrases": " " * 900_000})
    )
    async with (
        serve(server, keys=KEYS, messages=budget) as served,
        httpx2.AsyncClient(base_url=served.sockets.url) as client,
    ):
        _, writer = await asyncio.open_connection("127.0.0.1", served.sockets.http_port)
        head = f"POST {INFER} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer sk-one\r\nContent-Length: 900000\r\n\r\n"
        writer.write(head.encode() + b"{")

        async def code(key):
            return (await client.post(INFER, content=content, headers=headers(key))).json()["error"].partition(":")[0]

        while await code("one") != "STREAM_LIMIT":
            pass
        assert await code("two") == "OPTION_INVALID"
        writer.transport.abort()
        while await code("one") == "STREAM_LIMIT":
            pass


async def test_a_rejected_body_is_freed_at_once(client):
    wrong = json.dumps(one_input(shape=[1, 1], data=[0.5] * 50_000)).encode()
    content = {"no JSON": b"x" * (1 << 18), "texts": wrong.replace(b"0.5", b'"a"', 1), "shape": wrong}
    closed = one_input(shape=[1, 50_000], data=[0.5] * 50_000) | {"parameters": {"sequence_id": "closed"}}
    content["not open"] = json.dumps(closed).encode()
    await post(client, b"x")
    for name, body_of in content.items():
        with freed_at_once(len(body_of)):
            for _ in range(5):
                assert (await post(client, body_of))[0] == (404 if name == "not open" else 400)


async def test_nested_arrays_are_read_in_their_order(client, server):
    for number, data in enumerate(([0.5, 1, -1, 0], [[0.5, 1, -1, 0]], [[0.5, 1], [-1, 0]]), start=1):
        assert (
            await post(
                client,
                one_input(shape=[1, 4], data=data) | {"parameters": {"sequence_id": number, "sequence_start": True}},
            )
        )[0] == 200
    assert [each.samples.tolist() for each in server.batch.recognizer.requests if len(each.samples)] == [
        [0.5, 1, -1, 0]
    ] * 3


async def test_a_key_that_stands_twice_is_rejected(client):
    """One parser reads the first of `sequence_start` true and false, another the last."""
    fields = {"id": 'a: "b":', "parameters": {"sequence_id": "c:d", "sequence_start": True}}
    text = json.dumps(one_input(shape=[1, 1], data=[0.5]) | fields)
    assert (await post(client, text.encode()))[0] == 200
    for once, twice in (
        ('"sequence_start"', '"sequence_start": true, "sequence_start"'),
        ('"name"', '"name": "", "name"'),
    ):
        assert await post(client, text.replace(once, twice, 1).encode()) == (400, "REQUEST_INVALID")


async def test_bodies_that_do_not_fit_their_header(client):
    audio = triton.InferInput("AUDIO", [1, 2], "FP32")
    audio.set_data_from_numpy(np.zeros((1, 2), np.float32))
    content, length = InferenceServerClient.generate_request_body([audio], sequence_id="s", sequence_start=True)
    response = await client.post(INFER, content=content, headers={LENGTH: str(length)})
    assert response.status_code == 200 and int(response.headers[LENGTH]) < len(response.content)
    for wrong in ("0", "-1", "x", str(length - 1), str(length + 1), str(len(content) + 1), "9" * 20):
        assert await post(client, content, **{LENGTH: wrong}) == (400, "REQUEST_INVALID"), wrong
    for cut in (content[:-1], content + b"x"):
        assert await post(client, cut, **{LENGTH: str(length)}) == (400, "REQUEST_INVALID")
    assert await post(client, content, **{LENGTH: str(length), "Content-Encoding": "gzip"}) == (400, "REQUEST_INVALID")


async def test_other_addresses(client):
    for path in ("/v2/models/features", "/v2/models/asr/versions/2", "/v2/repository/index", "/v2/x"):
        response = await client.get(path)
        assert (response.status_code, response.json()["error"].partition(":")[0]) == (404, "MODEL_NOT_FOUND"), path
