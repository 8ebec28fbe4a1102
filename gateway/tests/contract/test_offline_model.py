"""A group with an offline model, on real sockets: what is of one protocol. The rules of all: contract/."""

import httpx2
import numpy as np
import pytest

from client.tests.helpers.fake_offline import SEGMENT, whole
from client.tests.helpers.sound_files import sound_file
from gateway.tests.contract.drivers import OpenAIFile, Realtime
from penstock_gateway.config import ReplicaGroup

SAMPLES = 3 * SEGMENT + 1000
NOISE = np.random.default_rng(0).uniform(-0.1, 0.1, SAMPLES).astype(np.float32)
TEXTS = [text for text, _ in whole(SAMPLES)]
TEXT = " ".join(TEXTS)
FILES_ONLY = "live audio is not accepted by model"


@pytest.fixture
def recognizer(offline):
    """The one of the server `offline`."""
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
