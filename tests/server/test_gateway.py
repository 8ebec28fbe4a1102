"""The gateway's HTTP API before a real server: its words are those of the direct client, alone and under load."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest

from penstock_client import Client
from tests.helpers.golden import golden_utterances
from trials.server.gateway import running_gateway
from trials.server.running import RunningServer

pytestmark = [pytest.mark.server, pytest.mark.anyio]
PATHS = [utterance.path for utterance in golden_utterances()]
OTHER_STREAMS = 15


@pytest.fixture(scope="module")
def gateway_url(server: RunningServer) -> Iterator[str]:
    """A gateway's process before the shared server. Segments end with their recording, as those of a direct client."""
    with running_gateway(server) as addresses:
        yield f"http://{addresses.http}"


@pytest.fixture(scope="module")
def direct_texts(server: RunningServer) -> list[str]:
    """What the direct client makes of each recording."""
    with Client(server.url("grpc"), timeout_s=60) as client:
        return [client.transcribe(path).text for path in PATHS]


@pytest.fixture
async def client(gateway_url: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=gateway_url, timeout=120) as client:
        while (await client.get("/health/ready")).status_code != 200:
            await asyncio.sleep(0.05)
        yield client


async def json_text(client: httpx2.AsyncClient, path) -> str:
    response = await client.post("/v1/audio/transcriptions", files={"file": path.open("rb")}, data={"model": ""})
    assert response.status_code == 200, response.text
    return response.json()["text"]


async def streamed_text(client: httpx2.AsyncClient, path) -> str:
    """The deltas, which the last event repeats."""
    response = await client.post("/v1/audio/transcriptions", files={"file": path.open("rb")}, data={"stream": "true"})
    events = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]
    text = "".join(event["delta"] for event in events[:-1])
    assert events[-1]["text"] == text
    return text


async def test_keywords_of_other_alphabets_reject_nothing(client, direct_texts):
    data = {"keywords[]": ["Rubout", "Müller", "24/7"]}
    response = await client.post("/v1/audio/transcriptions", files={"file": PATHS[0].open("rb")}, data=data)
    assert (response.status_code, response.json()["text"]) == (200, direct_texts[0])
    assert response.headers["penstock-ignored"] == "keywords '24/7'"


async def test_words_alone(client, direct_texts):
    for path, expected in zip(PATHS, direct_texts, strict=True):
        assert await json_text(client, path) == expected
        assert await streamed_text(client, path) == expected


async def test_words_beside_other_streams(client, direct_texts):
    async def others(number: int) -> None:
        while True:
            await json_text(client, PATHS[number % len(PATHS)])

    busy = [asyncio.create_task(others(number)) for number in range(OTHER_STREAMS)]
    try:
        await test_words_alone(client, direct_texts)
    finally:
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
    assert all(task.cancelled() for task in busy), "no other stream failed"


async def test_word_times_are_those_of_the_direct_client(client, server):
    with Client(server.url("grpc"), timeout_s=60) as direct:
        words = direct.transcribe(PATHS[0]).words
    response = await client.post(
        "/v1/audio/transcriptions",
        files={"file": PATHS[0].open("rb")},
        data={"response_format": "verbose_json", "timestamp_granularities[]": "word"},
    )
    assert [
        (each["word"], round(each["start"] * 1000), round(each["end"] * 1000)) for each in response.json()["words"]
    ] == [(word.text, word.start_ms, word.end_ms) for word in words]


async def test_options_reach_the_server(client):
    response = await client.post(
        "/v1/audio/transcriptions", files={"file": PATHS[0].open("rb")}, data={"keywords[]": "x" * 201}
    )
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "field_invalid"
