"""A group with an offline model: every protocol for files, and live audio, which is rejected. On real sockets."""

import asyncio
import base64
import contextlib
import hashlib
import json

import grpc
import httpx2
import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_triton
import websockets
from tritonclient.utils import InferenceServerException

from client.tests.helpers.fake_batch_server import BatchServer
from client.tests.helpers.fake_offline import SEGMENT, OfflineRecognizer, whole
from client.tests.helpers.sound_files import sound_file
from gateway.tests.helpers.riva_client import Client, audio, configuration
from gateway.tests.helpers.running import running
from gateway.tests.stream.conftest import metrics, open_streams, servers, until  # noqa: F401
from penstock_client import AsyncClient
from penstock_gateway.config import Config, ReplicaGroup
from penstock_gateway.gateway import Gateway
from penstock_gateway.kserve import sequences
from penstock_gateway.security.access import Access, Origins
from penstock_gateway.security.client_secrets import ClientSecrets
from penstock_gateway.security.keys import ApiKey, KeyRing

pytestmark = pytest.mark.anyio
SAMPLES = 3 * SEGMENT + 1000
NOISE = np.random.default_rng(0).uniform(-0.1, 0.1, SAMPLES).astype(np.float32)
PCM = (NOISE * 32767).astype("<i2").tobytes()
TEXTS = [text for text, _ in whole(SAMPLES)]
TEXT = " ".join(TEXTS)
FILES_ONLY = "live audio is not accepted by model"


@pytest.fixture
def recognizer():
    return OfflineRecognizer()


@pytest.fixture
def offline(recognizer):
    """Its server."""
    server = BatchServer(recognizer)
    yield server
    server.close()


@pytest.fixture
def serve(open_streams, metrics):  # noqa: F811
    """`async with serve(server, ...)`: the ports of a gateway on real sockets."""

    @contextlib.asynccontextmanager
    async def make(*replicas, ring=None, **options):
        ring = ring or KeyRing()
        access = Access(ring, ClientSecrets(b"k" * 32, ring), Origins(()))
        async with (
            open_streams(*replicas, **options) as streams,
            running(Gateway(Config(), streams, access, metrics)) as ports,
        ):
            yield ports

    return make


@pytest.fixture
async def http(serve, offline):
    async with serve(offline) as ports, httpx2.AsyncClient(base_url=ports.url, timeout=60) as client:
        yield client


@pytest.fixture
async def riva(serve, offline):
    async with serve(offline) as ports, grpc.aio.insecure_channel(ports.grpc_address) as channel:
        with grpc.insecure_channel(ports.grpc_address) as threaded_channel:
            yield Client(channel, threaded_channel)


def upload(client, **fields):
    file = ("speech.wav", sound_file(NOISE, form="WAV"))
    return client.post("/v1/audio/transcriptions", data=fields, files={"file": file})


async def test_openai_files(http, recognizer):
    assert (await upload(http)).json()["text"] == TEXT
    assert (await upload(http, response_format="text")).text == TEXT + "\n"
    body = (await upload(http, response_format="verbose_json")).json()
    assert [segment["text"] for segment in body["segments"]] == TEXTS
    subtitles = (await upload(http, response_format="srt")).text
    assert all(text.split()[0] in subtitles for text in TEXTS)
    starts = [request.parameters for request in recognizer.requests if request.is_start and request.parameters]
    assert {(one["endpoint_silence_ms"], one["endpoint_longest_s"]) for one in starts} == {(800, 0)}
    assert not recognizer.received and not recognizer.cancelled


async def test_a_model_that_detects_languages_accepts_them(serve, offline, recognizer):
    recognizer.server_parameters["detected_languages"] = "de,en,pt-BR"
    async with serve(offline) as ports, httpx2.AsyncClient(base_url=ports.url, timeout=60) as client:
        for code in ("de", "EN", "pt"):
            body = (await upload(client, response_format="verbose_json", language=code)).json()
            assert (body["text"], body["language"]) == (TEXT, code)
        response = await upload(client, language="ja")
        assert (response.status_code, response.json()["error"]["param"]) == (400, "language")
        assert response.json()["error"]["message"] == "language is 'ja'; accepted: de, en, pt-BR"
        assert (await upload(client, response_format="verbose_json")).json()["language"] == ""
    assert not any("language" in request.parameters for request in recognizer.requests)


async def test_openai_events(http):
    lines = (await upload(http, stream="true")).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert "".join(event["delta"] for event in events[:-1]) == events[-1]["text"] == TEXT
    assert len(events) > 3


@pytest.mark.parametrize("stream", ["true", "false"])
async def test_a_client_that_disconnects_frees_the_work(http, recognizer, until, stream):  # noqa: F811
    recognizer.step_of = lambda name: 0  # it would be polled for ever
    request = asyncio.create_task(upload(http, stream=stream))
    await until(lambda: recognizer.work)
    request.cancel()
    await until(lambda: recognizer.cancelled)
    assert not recognizer.received


async def test_riva_recognize(riva):
    results = (await riva.recognize(PCM, enable_word_time_offsets=True)).results
    assert [result.alternatives[0].transcript.strip() for result in results] == TEXTS
    config = await riva.config()
    assert [one.parameters["type"] for one in config.model_config] == ["offline"]


@pytest.mark.parametrize("interim", [False, True])
async def test_a_file_in_a_stream_of_riva_is_recognized_at_its_end(riva, interim):
    """As NVIDIA's transcribe_file.py sends it; that there are no interim results is said."""
    call = riva.stream()
    for message in (configuration(interim=interim), audio(PCM)):
        await call.write(message)
    await call.done_writing()
    metadata = dict(await call.initial_metadata())
    assert metadata.get("penstock-ignored") == ("interim_results" if interim else None)
    results = [response.results[0] async for response in call if response.results[0].is_final]
    assert [result.alternatives[0].transcript.strip() for result in results] == TEXTS


def kserve(**parameters):
    tensor = {"name": "AUDIO", "shape": [1, SAMPLES], "datatype": "FP32", "data": NOISE.tolist()}
    return {"inputs": [tensor], "parameters": {"sequence_id": "s", **parameters}}


async def test_kserve_requests_of_a_whole_file(http, recognizer):
    response = await http.post("/v2/models/asr/infer", json=kserve(sequence_start=True, sequence_end=True))
    found = {output["name"]: output["data"] for output in response.json()["outputs"]}
    assert found["TEXT"] == TEXTS and found["IS_FINAL"] == [True] * 4
    assert found["AUDIO_PROCESSED"][-1] == np.float32(SAMPLES / 16_000).item()
    assert len(found["TOKENS"]) == sum(tokens for _, tokens in whole(SAMPLES))
    assert not recognizer.received


@pytest.fixture
async def triton(serve, offline):
    """tritonclient's, of gRPC."""
    async with serve(offline) as ports, grpc_triton.InferenceServerClient(ports.grpc_address) as client:
        yield client


def kserve_inputs(samples, **parameters):
    """The arguments of tritonclient's `infer`."""
    tensor = grpc_triton.InferInput("AUDIO", [1, len(samples)], "FP32")
    tensor.set_data_from_numpy(samples[None])
    return {"model_name": "asr", "inputs": [tensor], "sequence_id": 7, **parameters}


def whole_file(protocol, http, triton):
    """One call with a file in one request."""
    if protocol == "http":
        return http.post("/v2/models/asr/infer", json=kserve(sequence_start=True, sequence_end=True))
    request = kserve_inputs(NOISE, sequence_start=True, sequence_end=True)
    if protocol == "grpc":
        return triton.infer(**request)

    async def requests():
        yield request
        await asyncio.Event().wait()

    return anext(triton.stream_infer(requests()))


@pytest.mark.parametrize("protocol", ["http", "grpc", "grpc stream"])
async def test_a_kserve_client_that_disconnects_frees_the_work(http, triton, recognizer, until, protocol):  # noqa: F811
    recognizer.step_of = lambda name: 0  # it would be polled for ever
    call = asyncio.create_task(whole_file(protocol, http, triton))
    await until(lambda: recognizer.work)
    call.cancel()
    await until(lambda: recognizer.cancelled)
    assert not recognizer.received and not recognizer.work


async def step(triton, samples=NOISE[:0], **parameters):
    """IS_FINAL, AUDIO_PROCESSED and TEXT of the response to a request, with an entry for each segment."""
    result = await triton.infer(**kserve_inputs(samples, **parameters))
    return [result.as_numpy(name)[0].tolist() for name in ("IS_FINAL", "AUDIO_PROCESSED", "TEXT")]


async def code(awaitable):
    """That of a rejection."""
    with pytest.raises(InferenceServerException) as caught:
        await awaitable
    return caught.value.message().partition(":")[0]


async def test_a_kserve_client_polls_a_file_of_several_requests(triton, recognizer):
    for part, start in zip(np.array_split(NOISE, 4), (True, False, False, False), strict=True):
        assert await step(triton, part, sequence_start=start) == [[False], [0.0], [b""]]
    found = [await step(triton, sequence_end=True)]
    while not (found[-1][0][-1] and found[-1][1][-1] == np.float32(SAMPLES / 16_000)):
        found.append(await step(triton))
    entries = [entry for each in found for entry in zip(*each, strict=True)]
    processed = [seconds for _, seconds, _ in entries]
    assert processed == sorted(processed)
    assert [text.decode() for is_final, _, text in entries if is_final] == TEXTS
    assert await code(step(triton)) == "STREAM_NOT_OPEN"
    assert not recognizer.received and not recognizer.cancelled


async def test_a_kserve_client_cancels_a_file_by_a_second_end(triton, recognizer, until):  # noqa: F811
    recognizer.step_of = lambda name: 0
    await step(triton, NOISE, sequence_start=True)
    assert (await step(triton, sequence_end=True))[0] == [False]
    assert await code(step(triton, NOISE)) == "REQUEST_INVALID"
    assert (await step(triton))[0] == [False]
    assert await step(triton, sequence_end=True) == [[True], [np.float32(SAMPLES / 16_000)], [b""]]
    assert await code(step(triton)) == "STREAM_NOT_OPEN"
    await until(lambda: recognizer.cancelled)
    assert not recognizer.received


async def test_a_kserve_client_that_does_not_poll_loses_its_file(triton, recognizer, until, monkeypatch):  # noqa: F811
    monkeypatch.setattr(sequences, "MAX_SILENT_S", 0.05)
    recognizer.step_of = lambda name: 0
    await step(triton, NOISE, sequence_start=True)
    await step(triton, sequence_end=True)
    await until(lambda: recognizer.cancelled)
    assert await code(step(triton)) == "STREAM_NOT_OPEN"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_penstock_client_sends_a_file_in_parts(serve, offline, recognizer, protocol):
    async with serve(offline) as ports:
        url = ports.url.removeprefix("http://") if protocol == "http" else ports.grpc_address
        async with AsyncClient(url, protocol, timeout_s=60) as client, client.open_stream() as stream:
            for part in np.array_split(NOISE, 4):
                await stream.send(part)
            await stream.finish()
            assert [result.text async for result in stream if result.is_final] == TEXTS
    assert not recognizer.received and not recognizer.cancelled


RING = KeyRing([(ApiKey(name, 4), hashlib.sha256(name.encode()).digest()) for name in ("shop", "lab")])


def client_of(ports, key):
    return httpx2.AsyncClient(base_url=ports.url, timeout=60, headers={"authorization": f"Bearer {key}"})


async def openai_file(ports, key):
    async with client_of(ports, key) as client:
        response = await upload(client)
    return response.status_code, response.text


async def kserve_file(ports, key, **parameters):
    parameters = parameters or {"sequence_id": "whole", "sequence_start": True, "sequence_end": True}
    async with client_of(ports, key) as client:
        response = await client.post("/v2/models/asr/infer", json=kserve(**parameters))
    return response.status_code, response.text


async def riva_file(ports, key):
    async with grpc.aio.insecure_channel(ports.grpc_address) as channel:
        with grpc.insecure_channel(ports.grpc_address) as threaded_channel:
            try:
                await Client(channel, threaded_channel).recognize(PCM, (("authorization", f"Bearer {key}"),))
            except grpc.aio.AioRpcError as error:
                return error.code().name, error.details()
    return "OK", ""


@pytest.mark.parametrize(
    ("send", "accepted", "full", "too_long"),
    [
        (openai_file, 200, (429, "streams_exhausted"), (413, "too_large")),
        (kserve_file, 200, (503, "AUDIO_MEMORY_FULL"), (400, "AUDIO_TOO_LONG")),
        (riva_file, "OK", ("RESOURCE_EXHAUSTED", "STREAMS_EXHAUSTED"), ("RESOURCE_EXHAUSTED", "TOO_LARGE")),
    ],
)
async def test_files_of_a_key_hold_half_of_the_audio(
    serve,
    offline,
    recognizer,
    until,  # noqa: F811
    send,
    accepted,
    full,
    too_long,
):
    """A file of 1.6 s without an end leaves 0.4 s of the share of 2 s. Another key has its own."""
    recognizer.server_parameters["max_audio_s"] = "4"
    async with serve(offline, ring=RING) as ports:
        assert (await kserve_file(ports, "shop", sequence_start=True))[0] == 200
        status, text = await send(ports, "shop")
        assert (status, full[1] in text, "of the API key 'shop'" in text) == (full[0], True, True)
        assert (await send(ports, "lab"))[0] == accepted
        assert len(recognizer.received) == 1
        assert (await kserve_file(ports, "shop", sequence_start=True, sequence_end=True))[0] == 200  # ends that file
        await until(lambda: not recognizer.received)
        assert (await send(ports, "shop"))[0] == accepted
    recognizer.server_parameters["max_audio_s"] = "3"
    async with serve(offline, ring=RING) as ports:
        status, text = await send(ports, "shop")
        assert (status, too_long[1] in text, "half of what the servers hold" in text) == (too_long[0], True, True)
        await until(lambda: not recognizer.received)


async def test_without_keys_files_may_hold_all_of_the_audio(serve, offline, recognizer):
    recognizer.server_parameters["max_audio_s"] = "2"
    async with serve(offline) as ports, httpx2.AsyncClient(base_url=ports.url, timeout=60) as http:
        assert (await upload(http)).json()["text"] == TEXT


async def test_realtime_is_rejected_at_the_handshake(http, serve, offline):
    response = await http.get("/v1/realtime")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "files_only")
    async with serve(offline) as ports:
        with pytest.raises(websockets.InvalidStatus) as caught:
            await websockets.connect(ports.ws_url + "/v1/realtime?intent=transcription")
        assert caught.value.response.status_code == 400


async def test_groups_of_both_kinds(serve, offline, servers):  # noqa: F811
    """A session chooses the streaming model; the offline one is rejected by name. Files go to both."""
    streaming = servers(model="streaming")
    groups = (
        ReplicaGroup("files", (f"127.0.0.1:{offline.port}",)),
        ReplicaGroup("live", (f"127.0.0.1:{streaming.port}",)),
    )
    async with serve(groups=groups) as ports:
        async with httpx2.AsyncClient(base_url=ports.url, timeout=60) as client:
            for name in ("files", "live"):
                assert (await upload(client, model=name)).json()["text"].split()[:3] == TEXT.split()[:3]
        async with websockets.connect(ports.ws_url + "/v1/realtime?intent=transcription") as socket:
            for name, kind in (("files", "error"), ("live", "session.updated")):
                transcription = {"audio": {"input": {"transcription": {"model": name}}}}
                await socket.send(json.dumps({"type": "session.update", "session": transcription}))
                while (event := json.loads(await asyncio.wait_for(socket.recv(), 60)))["type"] == "session.created":
                    pass
                assert event["type"] == kind
                if kind == "error":
                    assert (event["error"]["code"], FILES_ONLY in event["error"]["message"]) == ("files_only", True)
            data = base64.b64encode(PCM).decode()
            await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": data}))
            await socket.send(json.dumps({"type": "input_audio_buffer.commit"}))
            while event["type"] != "conversation.item.input_audio_transcription.completed":
                event = json.loads(await asyncio.wait_for(socket.recv(), 60))
            assert event["transcript"]
