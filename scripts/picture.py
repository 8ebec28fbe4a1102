"""Renders docs/images/live_captions.svg: the demo's streams in real time, as they were recognized in one real run.

    python -m scripts.picture [--model BUNDLE] [--context L,R] [--out FILE.svg]

Every word appears in the picture when the client received it. Viewers without animation show the end of the run.
"""

import argparse
import sys
import threading
import time
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import numpy as np

from penstock.errors import PenstockError
from penstock.evaluation.manifest import Utterance, read_manifest
from penstock_client import SAMPLE_RATE_HZ, Client, Transcript, read_audio
from scripts.demo import MANIFEST, MODEL, demo_server

OUT = Path(__file__).resolve().parents[1] / "docs" / "images" / "live_captions.svg"
WIDTH, ROW, TOP, BARS, BAR, CHARACTER = 900, 44, 56, 48, 3, 9.0
"""Pixels of the picture, a stream's row, the title, a bar, a character; bars of a waveform."""
PAUSE_S = 3.0
"""The end of the run stays on screen before the animation starts again."""
STYLE = """
text { font: 15px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #e6edf3 }
.dim { fill: #8b949e; font-size: 13px } .final { fill: #3fb950; font-size: 13px }
.bars { stroke: #58a6ff; stroke-width: 3; stroke-linecap: round }
"""


@dataclass
class Caption:
    """One stream of the run: its audio, and what was received when."""

    utterance: Utterance
    samples: np.ndarray
    texts: list[tuple[float, str]] = field(default_factory=list)
    """Seconds since the run's start, and the transcript received then."""
    latency_s: float = 0.0

    def stream(self, client: Client, start_s: float) -> None:
        """Streams the recording in real time."""

        def record(transcript: Transcript) -> None:
            self.texts.append((time.monotonic() - start_s, transcript.text))

        self.latency_s = client.transcribe(self.samples, realtime=True, on_progress=record).latency_s or 0.0


def run(url: str, utterances: list[Utterance]) -> list[Caption]:
    """Streams all recordings at once."""
    captions = [Caption(utterance, read_audio(utterance.audio)) for utterance in utterances]
    with Client(url) as client:
        client.transcribe(captions[0].samples)  # connected and warm before the clock starts
        start_s = time.monotonic()
        threads = [threading.Thread(target=caption.stream, args=(client, start_s)) for caption in captions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return captions


def render(captions: list[Caption], title: str) -> str:
    """The animated SVG."""
    length_s = max(time_s for caption in captions for time_s, _ in caption.texts) + PAUSE_S
    height = TOP + ROW * len(captions) + 10
    rows = "\n".join(_row(caption, i, TOP + ROW * i, length_s) for i, caption in enumerate(captions))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">
<style>{STYLE}</style>
<rect width="{WIDTH}" height="{height}" rx="10" fill="#0d1117"/>
<circle cx="22" cy="20" r="6" fill="#ff5f56"/><circle cx="42" cy="20" r="6" fill="#ffbd2e"/>
<circle cx="62" cy="20" r="6" fill="#27c93f"/>
<text x="86" y="25" class="dim">{escape(title)}</text>
{rows}
</svg>
"""


def _row(caption: Caption, number: int, y: int, length_s: float) -> str:
    """One stream: speaker, waveform as it is sent, words as they are received, latency of the final text."""
    audio_s = len(caption.samples) / SAMPLE_RATE_HZ
    loop = f'dur="{length_s:.2f}s" repeatCount="indefinite"'
    wave_x, wave_width = 70, BARS * (BAR + 1)

    def appears(time_s: float) -> str:
        """Hides an element until then."""
        return (
            f'<animate attributeName="opacity" values="0;1" keyTimes="0;{time_s / length_s:.4f}" '
            f'calcMode="discrete" {loop}/>'
        )

    loudest = max(float(np.abs(caption.samples).max()), 1e-9)
    heights = [max(2.0, 26 * float(np.abs(part).max()) / loudest) for part in np.array_split(caption.samples, BARS)]
    bars = " ".join(f"M{wave_x + i * (BAR + 1)},{y + 17 - size / 2:.1f}v{size:.1f}" for i, size in enumerate(heights))
    words = caption.texts[-1][1].split()
    times = [next(time_s for time_s, text in caption.texts if len(text.split()) > i) for i in range(len(words))]
    texts, x = [], float(wave_x + wave_width + 20)
    for word, time_s in zip(words, times, strict=True):
        texts.append(f'<text x="{x:.0f}" y="{y + 22}">{escape(word)}{appears(time_s)}</text>')
        x += CHARACTER * (len(word) + 1)
    sent = f"0;{audio_s / length_s:.4f};1"
    return f"""<text x="20" y="{y + 22}" class="dim">{escape(caption.utterance.speaker or "")}</text>
<path d="{bars}" class="bars" opacity=".2"/>
<clipPath id="sent{number}"><rect x="{wave_x - BAR}" y="{y}" width="{wave_width + BAR}" height="{ROW}">
<animate attributeName="width" values="0;{wave_width + BAR};{wave_width + BAR}" keyTimes="{sent}" {loop}/>
</rect></clipPath>
<path d="{bars}" class="bars" clip-path="url(#sent{number})"/>
{"".join(texts)}
<text x="{WIDTH - 20}" y="{y + 22}" text-anchor="end" class="final">final after {1000 * caption.latency_s:.0f} ms{
        appears(caption.texts[-1][0])
    }</text>"""


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--context", default="70,6")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    try:
        with demo_server(args.model, args.context) as url:
            captions = run(url, read_manifest(MANIFEST))
    except PenstockError as error:
        print(f"picture: error: {error}", file=sys.stderr)
        return 1
    title = f"{len(captions)} live streams, one batch, {Path(args.model).name}, context [{args.context}]"
    args.out.write_text(render(captions, title), encoding="utf-8")
    print(f"wrote {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
