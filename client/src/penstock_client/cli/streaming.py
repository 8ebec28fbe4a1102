"""Streams one source of audio to the server: a track of a file, a pipe or the microphone. Prints nothing."""

import argparse
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from penstock_client.audio.audio_pipe import AudioPipe
from penstock_client.audio.microphone import Microphone
from penstock_client.cli.output import Streamed
from penstock_client.client import Client
from penstock_client.playback import Pacer, Progress, Recording, SegmentEnds, Voice, dictate, play
from penstock_client.stream import Stream
from penstock_common.audio.tracks import Audio, Track
from penstock_common.options import StreamOptions, check_live_options, for_file
from penstock_common.samples import SAMPLE_RATE_HZ

_MAX_OFFLINE_SHARE = 0.8
"""A pipe that took a larger share of its audio's duration was live: it is reported with its latency."""


@dataclass(frozen=True)
class Streamer:
    """Opens a stream for each source, with the options of the arguments. Its methods may fail with a ClientError."""

    client: Client
    options: StreamOptions
    args: argparse.Namespace

    def track(self, audio: Audio, track: Track, on_progress: Progress) -> Streamed:
        """Streams a track of a file."""
        self._check_live(self.args.simulate_realtime)
        recording = Recording(track.samples, self.args.request_ms)
        start_s = time.monotonic()
        with self._open(audio.start_s) as stream:
            play(stream, recording, self._pacer(), on_progress, SegmentEnds(self.args.finalize_every))
        elapsed_s = None if self.args.simulate_realtime else time.monotonic() - start_s
        audio_s = track.samples.size / SAMPLE_RATE_HZ
        return Streamed(stream.transcript, audio_s, elapsed_s, audio.remarks, audio.start_s + audio_s)

    def pipe(self, pipe: AudioPipe, on_progress: Sequence[Progress]) -> list[Streamed]:
        """Streams the channels side by side until the end of the pipe, or until Ctrl-C."""
        self._check_live(self.args.simulate_realtime)
        start_s = time.monotonic()
        with contextlib.ExitStack() as opened:
            streams = [opened.enter_context(self._open(pipe.start_s, is_live=True)) for _ in on_progress]
            voices = [
                Voice(stream, report, SegmentEnds(self.args.finalize_every))
                for stream, report in zip(streams, on_progress, strict=True)
            ]
            audio_s = dictate(voices, pipe.blocks(), self._pacer())
        elapsed_s = time.monotonic() - start_s
        offline_s = elapsed_s if elapsed_s < _MAX_OFFLINE_SHARE * audio_s else None
        end_s = pipe.start_s + audio_s
        return [Streamed(stream.transcript, audio_s, offline_s, pipe.remarks, end_s) for stream in streams]

    def microphone(self, on_progress: Progress) -> Streamed:
        """Streams until Ctrl-C or until the microphone is unplugged."""
        self._check_live(True)
        with Microphone(self.args.microphone, self.args.request_ms) as microphone, self._open(is_live=True) as stream:
            voice = Voice(stream, on_progress, SegmentEnds(self.args.finalize_every))
            audio_s = dictate([voice], ([block] for block in microphone))
        return Streamed(stream.transcript, audio_s, end_s=audio_s)

    def _check_live(self, is_live: bool) -> None:
        """Raises FilesOnlyError for live audio to an offline model without a live window."""
        if is_live:
            self.client.check_live(self.options)

    def _open(self, start_s: float = 0.0, is_live: bool = False) -> Stream:
        is_file = not (is_live or self.args.simulate_realtime)
        if not is_file:
            check_live_options(self.options)
        stream = self.client.open_stream(for_file(self.options) if is_file else self.options)
        stream.start_ms = round(1000 * start_s)
        return stream

    def _pacer(self) -> Pacer | None:
        return Pacer() if self.args.simulate_realtime else None
