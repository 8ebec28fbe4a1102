"""Starts a server with the bundled checkpoint and streams recordings of several speakers to it at once, in real time.

    make demo            or    python scripts/demo.py [--model BUNDLE] [--context L,R] [--manifest FILE]

On a terminal the transcripts grow in place; piped, every new word is a line. Then reference, hypothesis, and the time
from the end of each speaker's audio to the final text. Stops everything it started.
"""

import argparse
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError
from penstock.evaluation.manifest import read_manifest
from penstock.model_repository import find_model_repository
from penstock.server import TritonServer
from penstock.server_launch import ServerOptions
from penstock.triton_install import find_triton
from penstock_client import Client, ClientError, Transcript
from penstock_client.live_text import LiveText

ROOT = Path(__file__).resolve().parent.parent
MANIFEST = ROOT / "tests" / "data" / "an4" / "manifest.jsonl"


@dataclass
class Speaker:
    """One recording and what has come back of it."""

    name: str
    path: Path
    reference: str
    text: str = ""
    latency_s: float | None = None
    error: str | None = None

    def stream(self, client: Client) -> None:
        """Streams the recording at the pace at which it was spoken."""
        try:
            transcript = client.transcribe(self.path, realtime=True, on_progress=self._show)
        except ClientError as error:
            self.error = str(error)
            return
        self.text, self.latency_s = transcript.text, transcript.latency_s

    def _show(self, transcript: Transcript) -> None:
        self.text = transcript.text


def read_speakers(manifest: Path) -> list[Speaker]:
    """The manifest's recordings. PenstockError names what cannot be used."""
    return [
        Speaker(utterance.speaker or f"speaker {i}", utterance.audio, utterance.reference)
        for i, utterance in enumerate(read_manifest(manifest), 1)
    ]


def stream_all(speakers: list[Speaker], url: str) -> None:
    """Streams every recording at once and shows the transcripts while they grow."""
    with Client(url) as client:
        threads = [threading.Thread(target=speaker.stream, args=(client,)) for speaker in speakers]
        for thread in threads:
            thread.start()
        show = Screen(speakers)
        while any(thread.is_alive() for thread in threads):
            show.update()
            time.sleep(0.05)
        show.update()
        show.close()


class Screen:
    """The growing transcripts: in place on a terminal, else a line whenever one of them has grown."""

    def __init__(self, speakers: list[Speaker]):
        self._speakers = speakers
        self._live = LiveText(sys.stdout) if sys.stdout.isatty() else None
        self._shown = [""] * len(speakers)

    def update(self) -> None:
        """Shows what is new."""
        if self._live:
            self._live.draw("\n".join(f"{speaker.name:>6}  {speaker.text}" for speaker in self._speakers))
            return
        for i, speaker in enumerate(self._speakers):
            if (text := speaker.text) != self._shown[i]:
                self._shown[i] = text
                print(f"{speaker.name:>6}  {text}", flush=True)

    def close(self) -> None:
        """Makes room for what comes next."""
        if self._live:
            self._live.clear()
        print()


def report(speakers: list[Speaker]) -> int:
    """Prints reference, hypothesis and latency; returns the number of failed streams."""
    for speaker in speakers:
        print(f"{speaker.name:>6}  said   {speaker.reference}")
        if speaker.error:
            print(f"        FAILED {speaker.error}")
            continue
        print(f"        heard  {speaker.text}   ({1000 * speaker.latency_s:.0f} ms after the end of the audio)")
    return sum(speaker.error is not None for speaker in speakers)


def main() -> int:
    """Runs the demo; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models" / "an4-rnnt-hybrid"), help="bundle")
    parser.add_argument("--context", default="70,6", help="attention context L,R")
    parser.add_argument("--manifest", type=Path, default=MANIFEST, help="recordings with transcripts")
    args = parser.parse_args()
    environment = {"PENSTOCK_MODEL": str(Path(args.model).absolute()), "PENSTOCK_CONTEXT": args.context}
    options = ServerOptions(find_model_repository(), drain_s=1, environment=environment)
    print(f"starting a server with {args.model}, context [{args.context}] ...", flush=True)
    try:
        speakers = read_speakers(args.manifest)
        with TritonServer(find_triton(), options) as server:
            print(f"{len(speakers)} speakers at once, at the pace at which they spoke:", flush=True)
            stream_all(speakers, f"127.0.0.1:{server.ports.grpc}")
    except PenstockError as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return 1
    return 1 if report(speakers) else 0


if __name__ == "__main__":
    sys.exit(main())
