"""A group with an offline model, on real sockets: what is of one protocol. The rules of all: contract/."""

import httpx2
import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_triton
from tritonclient.utils import InferenceServerException

from client.tests.helpers.fake_offline import SEGMENT, whole
from client.tests.helpers.sound_files import sound_file
from gateway.tests.contract.drivers import OpenAIFile, Realtime
from penstock_gateway.config import ReplicaGroup
from penstock_gateway.kserve import sequences

pytestmark = pytest.mark.anyio
SAMPLES = 3 * SEGMENT + 1000
NOISE = np.random.default_rng(0).uniform(-0.1, 0.1, SAMPLES).astype(np.float32)
PCM = (NOISE * 32767).astype("<i2").tobytes()
TEXTS = [text for text, _ in whole(SAMPLES)]
TEXT = " ".join(TEXTS)
FILES_ONLY = "live audio is not accepted by model"


@pytest.fixture
def recognizer(offline):
    """Of the server `offline`."""
    return offline.batch.recognizer


@pytest.fixture
async def http(serve, offline):
    async with serve(offline) as served, httpx2.AsyncClient(base_url=served.sockets.url, timeout=60) as client:
        yield client


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
    async with serve(offline) as served, httpx2.AsyncClient(base_url=served.sockets.url, timeout=60) as client:
        for code in ("de", "EN", "pt"):
            body = (await upload(client, response_format="verbose_json", language=code)).json()
            assert (body["text"], body["language"]) == (TEXT, code)
        response = await upload(client, language="ja")
        assert (response.status_code, response.json()["error"]["param"]) == (400, "language")
        assert response.json()["error"]["message"] == "language is 'ja'; accepted: de, en, pt-BR"
        assert (await upload(client, response_format="verbose_json")).json()["language"] == ""
    assert not any("language" in request.parameters for request in recognizer.requests)


@pytest.fixture
async def triton(serve, offline):
    """tritonclient's, of gRPC."""
    async with serve(offline) as served, grpc_triton.InferenceServerClient(served.sockets.grpc_address) as client:
        yield client


def kserve_inputs(samples, **parameters):
    """The arguments of tritonclient's `infer`."""
    tensor = grpc_triton.InferInput("AUDIO", [1, len(samples)], "FP32")
    tensor.set_data_from_numpy(samples[None])
    return {"model_name": "asr", "inputs": [tensor], "sequence_id": 7, **parameters}


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


async def test_a_kserve_client_cancels_a_file_by_a_second_end(triton, recognizer, until):
    recognizer.step_of = lambda name: 0
    await step(triton, NOISE, sequence_start=True)
    assert (await step(triton, sequence_end=True))[0] == [False]
    assert await code(step(triton, NOISE)) == "REQUEST_INVALID"
    assert (await step(triton))[0] == [False]
    assert await step(triton, sequence_end=True) == [[True], [np.float32(SAMPLES / 16_000)], [b""]]
    assert await code(step(triton)) == "STREAM_NOT_OPEN"
    await until(lambda: recognizer.cancelled)
    assert not recognizer.received


async def test_a_kserve_client_that_does_not_poll_loses_its_file(triton, recognizer, until, monkeypatch):
    monkeypatch.setattr(sequences, "MAX_SILENT_S", 0.05)
    recognizer.step_of = lambda name: 0
    await step(triton, NOISE, sequence_start=True)
    await step(triton, sequence_end=True)
    await until(lambda: recognizer.cancelled)
    assert await code(step(triton)) == "STREAM_NOT_OPEN"


async def test_without_keys_files_may_hold_all_of_the_audio(serve, offline, recognizer):
    recognizer.server_parameters["max_audio_s"] = "2"
    async with serve(offline) as served:
        assert (await OpenAIFile.of(served.ports, NOISE)).text == TEXT


async def test_a_page_can_ask_why_a_handshake_is_rejected(http):
    response = await http.get("/v1/realtime")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "files_only")


async def test_groups_of_both_kinds(serve, offline, servers):
    """A session chooses the streaming model; the offline one is rejected by name. Files go to both."""
    made = {"files": offline, "live": servers(model="streaming")}
    groups = tuple(ReplicaGroup(name, (f"127.0.0.1:{server.port}",)) for name, server in made.items())
    async with serve(groups=groups) as served:
        for name in made:
            assert (await OpenAIFile.of(served.ports, NOISE, model=name)).text.split()[:3] == TEXT.split()[:3]
        outcome = await Realtime.of(served.ports, NOISE, model="files")
        assert (outcome.code, FILES_ONLY in outcome.message) == ("FILES_ONLY", True)
        assert (await Realtime.of(served.ports, NOISE, model="live")).text
