"""Answers of every protocol to the same audio, to options, and to fields that it leaves out."""

import numpy as np
import pytest

from client.tests.helpers.event_loop import until
from client.tests.helpers.fake_fleet import speech
from client.tests.helpers.fake_offline import SEGMENT, whole
from client.tests.helpers.fake_speakers import voices
from gateway.tests.contract.call import END_SEGMENT
from gateway.tests.contract.drivers import ALL, Realtime
from penstock_gateway.errors import GatewayCode
from penstock_gateway.stream.masks import WordMasks

SPEECH = speech(1, 2, 3, 0, 0, 0, 0, 0, 0, 4, 5)
WORDS = [("w1", 0, 50), ("w2", 50, 100), ("w3", 100, 150), ("w4", 450, 500), ("w5", 500, 550)]


@pytest.mark.parametrize("size", [777, 1600, len(SPEECH)])
@pytest.mark.parametrize("driver", ALL)
async def test_words_and_times(fleet, serve, driver, size):
    server = fleet()
    async with serve(server) as served:
        parts = [SPEECH[start : start + size] for start in range(0, len(SPEECH), size)]
        outcome = await driver.of(served.ports, *parts)
        assert (outcome.code, outcome.text) == ("", "w1 w2 w3 w4 w5")
        assert outcome.words == WORDS * driver.has_words
        await until(lambda: not server.batch.streams and not served.streams.live)
        assert (await driver.of(served.ports, speech(6))).text == "w6"


@pytest.mark.parametrize("driver", [driver for driver in ALL if driver.has_words])
async def test_words_have_their_speakers_or_none_are_served(servers, serve, driver):
    server = servers()
    parts = np.array_split(voices(2, 2, 1, 1, 2), 10)
    parts += [END_SEGMENT, np.zeros(8000, np.float32)] if driver is Realtime else []
    async with serve(server) as served:
        outcome = await driver.of(served.ports, *parts, **driver.speakers)
        assert (outcome.code, outcome.speakers[:10]) == ("", [1, 1, 1, 1, 2, 2, 2, 2, 1, 1])
        server.speakers.is_served = False
        outcome = await driver.of(served.ports, *parts, **driver.speakers)
        assert (outcome.code, outcome.status) in driver.errors(GatewayCode.SPEAKERS_NOT_SERVED)


@pytest.mark.parametrize("driver", ALL)
async def test_numbers_are_asked_for_by_the_language_and_rejected_without_rules(fleet, serve, driver):
    server = fleet()
    parameters = server.batch.recognizer.server_parameters
    parameters["figure_languages"] = "de,en"
    async with serve(server) as served:
        for options, numbers in (({}, ("words", None)), (driver.figures, ("en",))):
            assert (await driver.of(served.ports, SPEECH, **options)).text == "w1 w2 w3 w4 w5"
            assert server.batch.starts[-1].get("numbers") in numbers
    del parameters["figure_languages"]  # a server of an earlier version
    async with serve(server) as served:
        outcome = await driver.of(served.ports, SPEECH, **driver.figures)
        is_lenient = "numbers" not in str(driver.figures)
        assert (outcome.text == "w1 w2 w3 w4 w5") == is_lenient
        assert is_lenient or (outcome.code, outcome.status) in driver.errors(GatewayCode.FIELD_INVALID)
        assert not is_lenient or "numbers" not in server.batch.starts[-1]


@pytest.mark.parametrize("driver", ALL)
async def test_words_are_masked_where_a_call_asks_and_the_gateway_has_a_file(fleet, serve, driver):
    masks = WordMasks({"w2": [""], "w3": ["de"], "w5": ["en"]})
    async with serve(fleet(), mask_words="words.txt") as served:
        served.streams._masks = masks
        outcome = await driver.of(served.ports, SPEECH, **driver.masks)
        assert (outcome.code, outcome.text, outcome.ignored) == ("", "w1 w* w3 w4 w*", "")
        assert [text for text, _, _ in outcome.words] == ["w1", "w*", "w3", "w4", "w*"] * driver.has_words
        assert (await driver.of(served.ports, SPEECH)).text == "w1 w2 w3 w4 w5"
    for is_strict in (False, True):
        async with serve(fleet(), strict=is_strict) as served:
            outcome = await driver.of(served.ports, SPEECH, **driver.masks)
            assert outcome.text == ("" if is_strict else "w1 w2 w3 w4 w5")
            name = "profanity_filter" if "profanity_filter" in driver.masks else "mask_words"
            assert name in (outcome.message if is_strict else outcome.ignored)


@pytest.mark.parametrize("samples", [0, 5, 700])
@pytest.mark.parametrize("driver", ALL)
async def test_speakers_of_audio_shorter_than_a_chunk(fleet, serve, driver, samples):
    server = fleet()
    async with serve(server) as served:
        plain, spoken = [await driver.of(served.ports, speech(1)[:samples], **given) for given in ({}, driver.speakers)]
        assert (spoken.code, spoken.text, spoken.words) == (plain.code, plain.text, plain.words)
        await until(lambda: not server.batch.streams and not server.speakers.audio and not served.streams.live)


@pytest.mark.parametrize("driver", [driver for driver in ALL if driver is not Realtime])
async def test_speakers_of_files_of_an_offline_model(serve, offline, driver):
    samples = np.random.default_rng(0).uniform(-0.1, 0.1, 3 * SEGMENT + 1000).astype(np.float32)
    async with serve(offline) as served:
        outcome = await driver.of(served.ports, *np.array_split(samples, 4), **driver.speakers)
        assert (outcome.code, outcome.text) == ("", " ".join(text for text, _ in whole(len(samples))))
        assert offline.speakers.modes == ["file"]
        await until(lambda: not offline.speakers.audio)


@pytest.mark.parametrize("driver", ALL)
async def test_files_of_an_offline_model(serve, offline, driver):
    samples = np.random.default_rng(0).uniform(-0.1, 0.1, 3 * SEGMENT + 1000).astype(np.float32)
    async with serve(offline) as served:
        outcome = await driver.of(served.ports, *np.array_split(samples, 4), **driver.unused_of_files)
        if driver is Realtime:
            assert (outcome.code, outcome.status) == ("FILES_ONLY", 400)
            assert outcome.message.startswith("live audio is not accepted by model")
            return
        assert (outcome.code, outcome.text) == ("", " ".join(text for text, _ in whole(len(samples))))
        assert outcome.ignored == ",".join(driver.unused_of_files)
        assert len(outcome.words) == -(-len(samples) // 800) * driver.has_words
        await until(lambda: not offline.batch.recognizer.received)
    assert not offline.batch.recognizer.cancelled


@pytest.mark.parametrize("driver", ALL)
async def test_a_wrong_option_is_rejected(fleet, serve, driver):
    server = fleet()
    async with serve(server) as served:
        for wrong in driver.wrong:
            outcome = await driver.of(served.ports, SPEECH, **wrong)
            assert (outcome.code, outcome.status) in driver.errors(GatewayCode.FIELD_INVALID), wrong
            assert not outcome.text
        await until(lambda: not server.batch.streams and not served.streams.live)
        assert not any(samples for _, samples, _ in server.batch.rows)
        assert (await driver.of(served.ports, SPEECH)).text == "w1 w2 w3 w4 w5"


@pytest.mark.parametrize("driver", [driver for driver in ALL if driver.unused])
async def test_an_option_without_an_effect_is_named(fleet, serve, driver):
    async with serve(fleet()) as served:
        outcome = await driver.of(served.ports, SPEECH, **driver.unused)
        assert (outcome.text, outcome.code) == ("w1 w2 w3 w4 w5", "")
        assert all(name in outcome.ignored for name in driver.unused), outcome.ignored
        assert not (await driver.of(served.ports, SPEECH)).ignored


@pytest.mark.parametrize(("known", "strict"), [("", False), ("", True), ("en", False)])
@pytest.mark.parametrize("driver", ALL)
async def test_a_language_that_the_model_does_not_name(fleet, serve, driver, known, strict):
    server = fleet()
    server.batch.recognizer.server_parameters["detected_languages"] = known
    async with serve(server, strict=strict) as served:
        outcome = await driver.of(served.ports, SPEECH, **driver.french)
        if known or strict:
            assert (outcome.code, outcome.status) in driver.errors(GatewayCode.FIELD_INVALID)
            assert "accepted: en" in outcome.message or not known
            assert known or "accepted: unset" in outcome.message
        else:
            assert (outcome.text, outcome.ignored) == ("w1 w2 w3 w4 w5", "language 'fr'")
