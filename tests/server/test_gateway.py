"""The gateway before a real server: the words of all protocols are those of the direct client, alone and under load."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import numpy as np
import pytest

from gateway.tests.contract.call import Call
from gateway.tests.contract.drivers import OpenAIFile, OpenAIStream, Realtime, RivaFile, RivaStream
from penstock.frontend.audio_file import read_audio
from penstock.pipeline.results.figures import figures_of
from penstock_gateway.errors import GatewayCode
from tests.helpers.golden import golden_utterances
from trials.server.gateway import RunningGateway

pytestmark = pytest.mark.server
PATHS = [utterance.path for utterance in golden_utterances()]
RATE_HZ, PART_SAMPLES, OTHER_STREAMS = 16_000, 1600, 15
DRIVERS = (RivaStream, RivaFile, OpenAIFile, OpenAIStream, Realtime)


async def check(gateway: RunningGateway, direct, driver: type[Call], path: Path, pace: float = 0) -> None:
    """A call in parts of 100 ms at a pace: 0 is full speed, 1 real time, 4 four times as fast."""
    samples, call = read_audio(path, RATE_HZ), driver(gateway, key=None)
    begin_s = asyncio.get_running_loop().time()
    for start in range(0, len(samples), PART_SAMPLES):
        if pace:
            await asyncio.sleep(begin_s + start / RATE_HZ / pace - asyncio.get_running_loop().time())
        call.send(samples[start : start + PART_SAMPLES])
    call.end()
    outcome = await call.ended()
    assert (outcome.code, outcome.text.split()) == ("", [text for text, _, _ in direct[path]])
    assert outcome.words == direct[path] * driver.has_words


async def check_all(gateway: RunningGateway, direct, drivers=DRIVERS, pace: float = 0) -> None:
    """All recordings at the same time."""
    await asyncio.gather(*(check(gateway, direct, driver, path, pace) for driver in drivers for path in PATHS))


@pytest.mark.parametrize("driver", DRIVERS)
async def test_numbers_as_figures(gateway, direct, driver):
    """The text, also as the sum of deltas; words have the times of those that they replace."""
    has_figures = False
    for path in PATHS:
        outcome = await driver.of(gateway, read_audio(path, RATE_HZ), key=None, **driver.figures)
        spoken = " ".join(text for text, _, _ in direct[path])
        assert (outcome.code, outcome.text) == ("", figures_of(spoken, "en"))
        assert [text for text, _, _ in outcome.words] == outcome.text.split() * driver.has_words
        assert {start for _, start, _ in outcome.words} <= {start for _, start, _ in direct[path]}
        has_figures |= outcome.text != spoken
    assert has_figures


@pytest.mark.parametrize("driver", [RivaStream, RivaFile, OpenAIFile])
async def test_each_channel_of_two_speakers_and_silence_is_as_alone(gateway, direct, driver):
    speakers = [read_audio(path, RATE_HZ) for path in PATHS[:2]]
    audio = np.zeros((max(map(len, speakers)), 3), np.float32)
    for channel, samples in enumerate(speakers):
        audio[: len(samples), channel] = samples
    riva = {"enable_separate_recognition_per_channel": True, "audio_channel_count": 3}
    options = {"channels": "each"} if driver is OpenAIFile else riva
    outcome = await driver.of(gateway, *np.array_split(audio, 20), key=None, **options)
    assert outcome.code == ""
    found = [[word for word, of in zip(outcome.words, outcome.channels, strict=True) if of == i] for i in (1, 2, 3)]
    assert found == [direct[PATHS[0]], direct[PATHS[1]], []]


async def test_words_beside_other_streams(gateway, direct):
    is_over = asyncio.Event()

    async def others(number: int) -> None:
        driver = (OpenAIFile, RivaStream)[number % 2]
        while not is_over.is_set():  # before Python 3.12 `wait_for` may lose a cancellation
            await check(gateway, direct, driver, PATHS[number % len(PATHS)])

    busy = [asyncio.create_task(others(number)) for number in range(OTHER_STREAMS)]
    try:
        for one in DRIVERS:
            await check_all(gateway, direct, (one,), 4 * one.is_live)
    finally:
        is_over.set()
        await asyncio.gather(*busy)


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=f"http://{gateway.http}", timeout=120) as client:
        yield client


async def test_keywords_of_other_alphabets_reject_nothing(client, direct):
    data = {"keywords[]": ["Rubout", "Müller", "24/7"]}
    response = await client.post("/v1/audio/transcriptions", files={"file": PATHS[0].open("rb")}, data=data)
    assert (response.status_code, response.json()["text"]) == (200, " ".join(text for text, _, _ in direct[PATHS[0]]))
    assert response.headers["penstock-ignored"] == "keywords '24/7'"


async def test_options_of_riva_reach_the_server(gateway):
    """A beam search; and phrases with capitals and a letter that the model does not write."""
    samples = read_audio(PATHS[0], RATE_HZ)
    outcome = await RivaFile.of(gateway, samples, key=None, max_alternatives=3)
    assert len(set(outcome.alternatives)) == len(outcome.alternatives) == 3
    contexts = [{"phrases": ["Rubout", "\u8a9e"], "boost": 20}]
    outcome = await RivaStream.of(gateway, samples, key=None, speech_contexts=contexts)
    assert outcome.text and outcome.ignored == r"speech_contexts.phrases '\u8a9e'"


@pytest.mark.parametrize(
    ("driver", "options"),
    [(OpenAIFile, {"keywords[]": "x" * 201}), (RivaFile, {"speech_contexts": [{"phrases": ["x" * 201], "boost": 20}]})],
)
async def test_what_the_server_rejects_is_named(gateway, driver, options):
    outcome = await driver.of(gateway, np.zeros(1600, np.float32), key=None, **options)
    assert (outcome.code, outcome.status) in driver.errors(GatewayCode.FIELD_INVALID)
    assert "phrase" in outcome.message
