"""Starts a server with the bundled checkpoint and streams recordings of several speakers to it at once, in real time.

    make demo            or    python -m scripts.demo [--model BUNDLE] [--context L,R] [--manifest FILE]

On a terminal the transcripts grow in place; piped, every new word is a line. Then reference, transcript, and the time
from the end of each recording to its final text. Stops everything it started.
"""

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.options import BUNDLE, DEFAULT_RECORDINGS
from penstock.errors import PenstockError
from penstock.evaluation.manifest import read_manifest
from penstock.serving.launch import ServerOptions
from penstock.serving.model_repository import find_model_repository
from penstock.serving.server import TritonServer
from penstock.serving.triton_install import find_triton
from penstock_client import Client, ClientError, Transcript
from penstock_client.cli.output import LiveText

_NEXT = f"{Path(sys.executable).parent / 'penstock'} serve --gateway, then speak at http://localhost:8080/captions"


@dataclass
class Speaker:
    """One recording and its transcript so far."""

    name: str
    path: Path
    reference: str
    text: str = ""
    latency_s: float | None = None
    error: str | None = None

    def stream(self, client: Client) -> None:
        """Streams the recording in real time."""
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
    """Streams all recordings at once and shows the growing transcripts."""
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
        """Removes the growing transcripts; the report follows."""
        if self._live:
            self._live.clear()
        print()


def report(speakers: list[Speaker]) -> int:
    """Prints reference, transcript and latency of each stream; returns the number of failed streams."""
    for speaker in speakers:
        print(f"{speaker.name:>6}  reference   {speaker.reference}")
        if speaker.error:
            print(f"        FAILED      {speaker.error}")
            continue
        print(f"        recognized  {speaker.text}   (final {1000 * speaker.latency_s:.0f} ms after the audio)")
    return sum(speaker.error is not None for speaker in speakers)


@contextmanager
def demo_server(model: str, context: str) -> Iterator[str]:
    """A server of its own on free ports; gives its gRPC address."""
    environment = {"PENSTOCK_MODEL": str(Path(model).absolute()), "PENSTOCK_CONTEXT": context}
    options = ServerOptions(find_model_repository(), drain_s=1, environment=environment)
    with TritonServer(find_triton(), options) as server:
        yield f"127.0.0.1:{server.ports.grpc}"


def main() -> int:
    """Runs the demo; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(BUNDLE), help="bundle")
    parser.add_argument("--context", default="70,6", help="attention context L,R")
    parser.add_argument("--manifest", type=Path, default=DEFAULT_RECORDINGS, help="recordings with transcripts")
    args = parser.parse_args()
    print(f"starting a server with {args.model}, context [{args.context}] ...", flush=True)
    try:
        speakers = read_speakers(args.manifest)
        with demo_server(args.model, args.context) as url:
            print(f"{len(speakers)} live streams, in real time:", flush=True)
            stream_all(speakers, url)
    except PenstockError as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return 1
    if report(speakers):
        return 1
    print(f"\nnext: {_NEXT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
