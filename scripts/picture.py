"""Records docs/images/captions.webp: the captions page in Chromium, with recordings for a microphone, in one real run.

penstock serve --gateway                         # with PENSTOCK_GATEWAY_CAPTIONS=1, in another terminal
python -m scripts.picture [--url http://localhost:8080/captions] [--out FILE.webp]
"""

import argparse
import asyncio
import base64
import io
import itertools
import tempfile
import time
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

from penstock.evaluation.manifest import read_manifest
from penstock_client import SAMPLE_RATE_HZ, read_audio
from scripts.browser import Page, browser
from scripts.demo import MANIFEST

OUT = Path(__file__).resolve().parents[1] / "docs" / "images" / "captions.webp"
WIDTH, HEIGHT, SCALE, FRAME_S = 760, 430, 1.5, 0.1
PAUSE_S, LAST_FRAME_MS = 1.2, 3000
"""Silence after each recording, which ends a caption; how long the picture shows the end of the run."""


def microphone(folder: Path) -> tuple[Path, float]:
    """A WAV file of all recordings of the demo, and its duration in s."""
    silence = np.zeros(int(PAUSE_S * SAMPLE_RATE_HZ), np.float32)
    parts = [part for utterance in read_manifest(MANIFEST) for part in (read_audio(utterance.audio), silence)]
    samples = np.concatenate([silence, *parts])
    soundfile.write(folder / "microphone.wav", samples, SAMPLE_RATE_HZ)
    return folder / "microphone.wav", len(samples) / SAMPLE_RATE_HZ


async def record(page: Page, duration_s: float) -> list[tuple[float, bytes]]:
    """PNG files of the page, with the seconds since the start."""
    frames: list[tuple[float, bytes]] = []
    start_s = time.monotonic()
    while (now_s := time.monotonic() - start_s) < duration_s:
        shot = await page.call("Page.captureScreenshot", format="png")
        png = base64.b64decode(shot["data"])
        if not frames or frames[-1][1] != png:
            frames.append((now_s, png))
        await asyncio.sleep(max(0.0, FRAME_S - (time.monotonic() - start_s - now_s)))
    return frames


async def run(url: str) -> list[tuple[float, bytes]]:
    """Speaks the recordings into the page's microphone."""
    with tempfile.TemporaryDirectory() as folder:
        recording, duration_s = microphone(Path(folder))
        async with browser(recording) as page:
            await page.open(url)
            await page.screenshot(Path(folder) / "first.png", WIDTH, HEIGHT, "dark", SCALE)
            await page.click("microphone")
            return await record(page, duration_s)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://localhost:8080/captions", help="the captions page")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    times, pngs = zip(*asyncio.run(run(args.url)), strict=True)
    images = [Image.open(io.BytesIO(png)).convert("RGB") for png in pngs]
    shown_ms = [*(round(1000 * (end - start)) for start, end in itertools.pairwise(times)), LAST_FRAME_MS]
    images[0].save(args.out, save_all=True, append_images=images[1:], duration=shown_ms, loop=0, quality=70, method=6)
    print(f"wrote {args.out}: {len(images)} frames, {args.out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
