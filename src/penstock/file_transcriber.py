"""Transcribes audio files through the streaming recognizer, several at once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.errors import AudioError, StreamError
from penstock.frontend.audio_file import read_audio
from penstock.pipeline.features_stage import AudioRequest
from penstock.pipeline.results import Alternative, StreamResult
from penstock.pipeline.words import Token, Word
from penstock.recognizer import StreamingRecognizer


@dataclass
class FileTranscript:
    """Transcript of one file, or its error."""

    audio: str
    audio_s: float = 0.0
    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    alternatives: list[Alternative] = field(default_factory=list)
    error: str | None = None

    def add(self, result: StreamResult) -> None:
        """Adds one result of the file's stream."""
        self.text = result.text
        self.tokens += result.tokens
        self.words += result.words
        self.alternatives += result.alternatives


class _OpenFile:
    def __init__(self, index: int, samples: np.ndarray, transcript: FileTranscript, options: dict):
        self.index, self.samples, self.transcript = index, samples, transcript
        self.options = options
        self.position = 0

    def next_request(self, request_samples: int) -> AudioRequest:
        start, self.position = self.position, self.position + request_samples
        samples = self.samples[start : self.position]
        options = self.options if start == 0 else {}
        return AudioRequest(self.index, samples, is_start=start == 0, is_end=self.is_done, options=options)

    @property
    def is_done(self) -> bool:
        return self.position >= len(self.samples)


class FileTranscriber:
    """Streams files in requests of `request_samples`, at most as many at once as the recognizer has streams."""

    def __init__(self, recognizer: StreamingRecognizer, request_samples: int, options: dict | None = None):
        """options: for every stream, as in `penstock.pipeline.stream_options`."""
        self._recognizer = recognizer
        self._request_samples = request_samples
        self._options = options or {}

    def transcribe(self, paths: Iterable[str | Path]) -> Iterator[FileTranscript]:
        """Yields one transcript per file, in the order of `paths`; a file that fails has `error` set."""
        waiting = enumerate(paths)
        open_files: list[_OpenFile] = []
        finished: dict[int, FileTranscript] = {}
        next_index = 0
        has_more = True
        while has_more or open_files:
            has_more = self._fill(waiting, open_files, finished)
            open_files = self._advance(open_files, finished)
            while next_index in finished:
                yield finished.pop(next_index)
                next_index += 1

    def _fill(
        self,
        waiting: Iterator[tuple[int, str | Path]],
        open_files: list[_OpenFile],
        finished: dict[int, FileTranscript],
    ) -> bool:
        """Opens files while streams are free; returns whether more may be waiting."""
        while len(open_files) < self._recognizer.table.max_streams:
            entry = next(waiting, None)
            if entry is None:
                return False
            index, path = entry
            transcript = FileTranscript(str(path))
            try:
                samples = read_audio(path, self._recognizer.sample_rate_hz)
            except AudioError as error:
                transcript.error = str(error)
                finished[index] = transcript
                return True  # results before it are yielded first
            transcript.audio_s = len(samples) / self._recognizer.sample_rate_hz
            open_files.append(_OpenFile(index, samples, transcript, self._options))
        return True

    def _advance(self, open_files: list[_OpenFile], finished: dict[int, FileTranscript]) -> list[_OpenFile]:
        """Sends one request per open file; returns the files that still have audio."""
        results = self._recognizer.process([file.next_request(self._request_samples) for file in open_files])
        for file, result in zip(open_files, results, strict=True):
            if isinstance(result, StreamError):
                file.transcript.error = f"{result.code}: {file.transcript.audio}: {result.message}"
                self._recognizer.process([AudioRequest(file.index, np.zeros(0, np.float32), is_end=True)])
            else:
                file.transcript.add(result)
            if file.is_done or file.transcript.error:
                finished[file.index] = file.transcript
        return [file for file in open_files if file.index not in finished]
