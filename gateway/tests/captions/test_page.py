"""The captions page in a headless Chromium, with fake streams: microphone, files, settings, and what can go wrong."""

import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from gateway.tests.helpers.browser import browser
from gateway.tests.helpers.fake_streams import GROUP, speech
from gateway.tests.helpers.running import running
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.security.keys import ApiKey, KeyRing

pytestmark = pytest.mark.browser
RATE_HZ = 16_000
KEYS = KeyRing([(ApiKey("team", 4), hashlib.sha256(b"right").digest())])
FINALS = "document.getElementById('finals').children"
READY = "document.getElementById('status').textContent === 'Ready'"
SAVED = """new Promise((resolve) => {
  URL.createObjectURL = (blob) => { window.saved = blob; return "#"; };
  HTMLAnchorElement.prototype.click = async function () {
    resolve({name: this.download, text: await window.saved.text()});
  };
  document.getElementById("save").onclick();
})"""
"""Text that Save would write."""
TIME = r"\d\d:\d\d:\d\d,\d{3}"
NO_MODELS = ["Failed to load resource: the server responded with a status of 404 (Not Found)"]
"""A gateway of these tests may have no /v1/models."""


@pytest.fixture
def recording(tmp_path):
    """Writes a WAV file of speech and silence, in seconds; the first is silence."""

    def write(*parts):
        samples = speech(0.0, *parts)
        path = tmp_path / "recording.wav"
        soundfile.write(path, samples * np.sin(np.arange(len(samples)) * 0.3), RATE_HZ, subtype="PCM_16")
        return path

    return write


@pytest.fixture
def captions(make_gateway):
    return make_gateway(captions=True)


def problems(page):
    return [problem for problem in page.problems if problem not in NO_MODELS]


async def finals(page, count):
    await page.wait(f"{FINALS}.length >= {count}")
    return await page.evaluate(f"[...{FINALS}].map((line) => line.lastChild.textContent)")


def words(*texts):
    """Checks that the texts are "w0 w1 ..." without a gap, and returns their number."""
    found = " ".join(texts).split()
    assert found == [f"w{i}" for i in range(len(found))]
    return len(found)


async def test_the_microphone(captions, recording, streams):
    async with running(captions) as served, browser(recording(0.3, 1.0, 1.2, 0.6, 30.0)) as page:
        await page.open(f"{served.url}/captions")
        await page.evaluate("document.getElementById('phrases').value = 'rubout\\n\\n market street '")
        await page.click("done")
        await page.click("microphone")
        await page.wait("document.getElementById('interim').textContent.includes('w3')")
        assert await page.evaluate("document.getElementById('interim').checkVisibility()")
        texts = await finals(page, 2)
        assert 14 <= words(*texts) <= 20  # 1.6 s of speech, and the frames at its edges
        assert (await page.text("status"), await page.text("microphone")) == ("Listening", "")
        assert (await page.text("latency")).endswith(" ms")
        await page.click("microphone")
        await page.wait(READY)
        assert problems(page) == []
    assert streams.opened[0].is_cancelled
    assert streams.opened[0].options.phrases == (("rubout", 1.5), ("market street", 1.5))


async def test_the_last_words_before_the_stop_are_written(captions, recording):
    async with running(captions) as served, browser(recording(0.1, 20.0)) as page:
        await page.open(f"{served.url}/captions")
        await page.click("microphone")
        await page.wait("document.getElementById('interim').textContent.includes('w8')")
        await page.click("microphone")
        await page.wait(READY)
        (text,) = await finals(page, 1)
        assert words(text) >= 9
        assert problems(page) == []


async def test_a_file(captions, recording):
    async with running(captions) as served, browser() as page:
        await page.open(f"{served.url}/captions")
        await page.choose("chooser", recording(0.3, 1.0, 1.2, 0.6))
        await page.wait(f"{READY} && {FINALS}.length > 0")
        texts = await finals(page, 2)
        assert (len(texts), problems(page)) == (2, [])
        assert 16 <= words(*texts) <= 18
        saved = await page.evaluate(SAVED)
        assert saved["name"] == "recording.srt"
        assert re.fullmatch(rf"1\n{TIME} --> {TIME}\n{texts[0]}\n\n2\n{TIME} --> {TIME}\n{texts[1]}\n", saved["text"])
        await page.click("clear")
        assert await page.evaluate(f"{FINALS}.length") == 0


SPOKEN = "[...document.querySelectorAll('.speaker')].map((part) => [part.dataset.speaker, part.textContent])"
COLOURS = "new Set([...document.querySelectorAll('.speaker')].map((part) => getComputedStyle(part).color)).size"


async def test_speakers_have_colours_and_numbers_are_figures(captions, recording, streams):
    streams.groups = (replace(GROUP, parameters={"figure_languages": "en"}),)
    async with running(captions) as served, browser(recording(0.3, 0.6, 1.2, 0.6, 30.0)) as page:
        await page.open(f"{served.url}/captions")
        await page.evaluate("for (const name of ['speakers', 'figures']) document.getElementById(name).checked = true")
        await page.click("microphone")
        (text,) = (await finals(page, 1))[:1]
        options = streams.opened[-1].options
        assert (options.speakers, options.numbers) == ("on", "en")
        assert "".join(f" {part}" for _, part in await page.evaluate(SPOKEN)).startswith(f" {text}")
        assert await page.evaluate(COLOURS) == 2
        await page.click("microphone")
        await page.wait(READY)
        await page.click("clear")
        await page.choose("chooser", recording(0.3, 0.6))
        await page.wait(f"{READY} && {FINALS}.length > 1")  # a line for each turn
        assert streams.opened[-1].options.numbers == "en"
        turns = await page.evaluate(SPOKEN)
        assert {speaker for speaker, _ in turns} == {"A", "B"} and words(*(part for _, part in turns)) >= 5
        saved = await page.evaluate(SAVED)
        assert "\nA: w0 w1\n" in saved["text"]
        assert problems(page) == []


async def test_a_model_of_files_has_no_microphone(captions, recording, streams):
    streams.groups = (replace(GROUP, context=None, windows=("file",)),)
    async with running(captions) as served, browser() as page:
        await page.open(f"{served.url}/captions")
        await page.wait("document.getElementById('microphone').hidden")
        await page.choose("chooser", recording(0.3, 1.0))
        assert words(*await finals(page, 1)) >= 8


async def test_a_blocked_microphone(captions):
    async with running(captions) as served, browser() as page:
        await page.open(f"{served.url}/captions")
        await page.click("microphone")
        await page.wait("!document.getElementById('message').hidden")
        assert "The microphone is blocked" in await page.text("message-text")
        assert await page.evaluate("document.getElementById('microphone').ariaPressed") == "false"
        assert problems(page) == []


async def test_a_lost_stream_loses_no_word(captions, recording, streams):
    """The audio since the last final is sent again, so the new stream has the words of the lost one, too."""
    async with running(captions) as served, browser(recording(0.1, 2.0, 1.2, 2.0, 30.0)) as page:
        await page.open(f"{served.url}/captions")
        await page.click("microphone")
        (first,) = await finals(page, 1)
        await page.wait("document.getElementById('interim').textContent.split(' ').length > 8")
        streams.opened[0].fail(GatewayError(GatewayCode.STREAM_LOST, "the replica is gone"))
        _, second = await finals(page, 2)
        assert 19 <= words(first) <= 22
        assert 19 <= words(second) <= 22
        assert len(streams.opened) == 2


async def test_a_server_with_keys(make_gateway, recording, streams):
    async with running(make_gateway(KEYS, captions=True)) as served, browser(recording(0.1, 30.0)) as page:
        await page.open(f"{served.url}/captions")
        await page.click("microphone")
        await page.wait("document.getElementById('message-text').textContent === 'This server needs an API key.'")
        for key, shown in [("wrong", "The server does not accept this API key."), ("right", "")]:
            await page.wait(READY)
            await page.evaluate(f"document.getElementById('key').value = '{key}'")
            await page.click("done")
            await page.click("microphone")
            if shown:
                await page.wait(f"document.getElementById('message-text').textContent === '{shown}'")
        await page.wait("document.getElementById('interim').textContent.includes('w0 w1')")
    assert streams.opened[0].key == ApiKey("team", 4)


async def test_a_server_with_keys_that_is_full_starts_again_and_has_two_models(make_gateway, recording, streams):
    streams.groups, streams.max_streams = (GROUP, replace(GROUP, name="other")), 0
    gateway = make_gateway(KEYS, captions=True)
    async with running(gateway) as served, browser(recording(0.1, 30.0)) as page:
        await page.open(f"{served.url}/captions")
        await page.evaluate("document.getElementById('key').value = 'right'")
        await page.evaluate("document.getElementById('key').dispatchEvent(new Event('change'))")
        await page.wait("!document.getElementById('model-row').hidden")
        assert await page.evaluate("document.getElementById('model').length") == 2
        await page.click("microphone")
        await page.wait("document.getElementById('message-text').textContent === 'The server is full.'")
        assert await page.text("status") == "Reconnecting"
        streams.max_streams = 4
        await page.wait("document.getElementById('interim').textContent.includes('w0 w1')")
        gateway.access.secrets._signing_key = b"n" * 32  # that of a server which was started again without --secret
        streams.opened[0].fail(GatewayError(GatewayCode.STREAM_LOST, "the replica is gone"))
        await page.wait("document.getElementById('message-text').textContent === 'The client secret has expired.'")
        await page.wait("document.getElementById('interim').textContent.includes('w0 w1')")
    assert len(streams.opened) == 2
