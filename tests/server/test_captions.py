"""The captions page before a real server, in a headless Chromium: finals of a file, live words, pictures."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from gateway.tests.helpers.browser import browser
from tests.helpers.golden import golden_utterances
from trials.server.running import RunningServer, running_gateway

pytestmark = [pytest.mark.server, pytest.mark.browser]
PATHS = [utterance.path for utterance in golden_utterances()]
PICTURES = Path("build/captions")
RATE_HZ = 16_000
FINALS = "[...document.getElementById('finals').children].map((line) => line.lastChild.textContent)"
READY = "document.getElementById('status').textContent === 'Ready'"


@pytest.fixture(scope="module")
def page_url(server: RunningServer) -> Iterator[str]:
    with running_gateway(server, "--captions") as address:
        yield f"http://{address.http}/captions"


def microphone(folder: Path, path: Path) -> Path:
    """A WAV file of a recording between 0.3 s and 30 s of silence."""
    before, after = (np.zeros(int(seconds * RATE_HZ), np.float32) for seconds in (0.3, 30))
    wav = folder / "microphone.wav"
    soundfile.write(wav, np.concatenate([before, soundfile.read(path, dtype="float32")[0], after]), RATE_HZ)
    return wav


def joined(folder: Path, *paths: Path) -> Path:
    """A WAV file of recordings with pauses between them."""
    parts = [np.append(soundfile.read(path, dtype="float32")[0], np.zeros(RATE_HZ, np.float32)) for path in paths]
    soundfile.write(folder / "joined.wav", np.concatenate(parts), RATE_HZ)
    return folder / "joined.wav"


async def test_pictures(page_url, tmp_path):
    """Finals and interim words, on a desktop and a phone, in both themes."""
    async with browser(microphone(tmp_path, PATHS[1])) as page:
        await page.open(page_url)
        await page.choose("chooser", joined(tmp_path, PATHS[4], PATHS[5], PATHS[0]))
        await page.wait(f"{FINALS}.length === 3 && {READY}")
        await page.click("microphone")
        await page.wait("document.getElementById('interim').textContent.split(' ').length > 4")
        await page.evaluate("document.getElementById('status').getAnimations({subtree: true})[0]?.cancel()")
        for theme in ("light", "dark"):
            await page.screenshot(PICTURES / f"desktop-{theme}.png", 1100, 700, theme)
            await page.screenshot(PICTURES / f"phone-{theme}.png", 390, 844, theme)
        await page.click("settings")
        await page.screenshot(PICTURES / "settings.png", 1100, 700, "light")
        assert page.problems == []
