"""Transcribes audio files through an offline model: whole files, several in one batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import AudioError, StreamError
from penstock.frontend.audio_file import load_audio
from penstock.transcription.files import FileTranscript, Transcriber
from penstock.transcription.offline import OfflineRecognizer
from penstock_client.channels import MIX, Channel


class _File(NamedTuple):
    """A file in memory; its lists have one entry per track."""

    number: int
    transcripts: list[FileTranscript]
    samples: list[np.ndarray]
    options: Mapping[str, Any]
    problem: str | None
    warning: str | None


class OfflineFileTranscriber(Transcriber):
    """Reads files until a batch is full, and recognizes them together."""

    def __init__(
        self,
        recognizer: OfflineRecognizer,
        options: dict | Sequence[dict] | None = None,
        channel: Channel = MIX,
    ):
        """options: of every recording, or a sequence: of each file."""
        self._recognizer = recognizer
        self._options = options or {}
        self._channel = channel

    def transcribe_numbered(
        self, files: Iterable[tuple[int, str | Path]], on_audio: Callable[[float], None] = lambda audio_s: None
    ) -> Iterator[tuple[int, list[FileTranscript]]]:
        """As in `Transcriber`; there is room for a file while the batch has less than its limits."""
        batch: list[_File] = []
        for index, path in files:
            try:
                file = self._read(index, path)
            except AudioError as error:
                yield index, [FileTranscript(str(path), error=str(error))]
                continue
            if batch and not self._fits([*batch, file]):
                yield from self._recognize(batch, on_audio)
                batch = []
            batch.append(file)
            if not self._has_room(batch):
                yield from self._recognize(batch, on_audio)
                batch = []
        yield from self._recognize(batch, on_audio)

    def _read(self, index: int, path: str | Path) -> _File:
        """Raises AudioError."""
        audio = load_audio(path, self._recognizer.sample_rate_hz, self._channel)
        options = self._options if isinstance(self._options, dict) else self._options[index]
        samples = [track.samples for track in audio.tracks]
        transcripts = [
            FileTranscript(str(path), track.channel, len(track.samples) / self._recognizer.sample_rate_hz)
            for track in audio.tracks
        ]
        return _File(index, transcripts, samples, options, audio.problem, audio.warning)

    def _fits(self, batch: Sequence[_File]) -> bool:
        samples = sum(len(track) for file in batch for track in file.samples)
        tracks = sum(len(file.samples) for file in batch)
        seconds = samples / self._recognizer.sample_rate_hz
        return tracks <= self._recognizer.max_batch and seconds <= self._recognizer.batch_audio_s

    def _has_room(self, batch: Sequence[_File]) -> bool:
        return sum(len(file.samples) for file in batch) < self._recognizer.max_batch and self._fits(batch)

    def _recognize(
        self, batch: Sequence[_File], on_audio: Callable[[float], None]
    ) -> Iterator[tuple[int, list[FileTranscript]]]:
        if not batch:
            return
        samples = [track for file in batch for track in file.samples]
        results = iter(self._recognizer.transcribe(samples, [file.options for file in batch for _ in file.samples]))
        for file in batch:
            for transcript in file.transcripts:
                result = next(results)
                if isinstance(result, StreamError):
                    transcript.error = f"{result.code}: {transcript.audio}: {result.message}"
                else:
                    transcript.add_all(result)
                on_audio(transcript.audio_s)
            last = file.transcripts[-1]
            last.warning = file.warning
            if file.problem and not last.error:
                last.error = str(AudioError(file.problem))
            yield file.number, file.transcripts
