"""Transcribes audio files through the streaming recogniser, several at once, as if each were live."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.audio import read_audio
from penstock.errors import AudioError, StreamError
from penstock.recognizer import StreamingRecognizer
from penstock.stages.features import AudioRequest
from penstock.stages.stream_text import Alternative, StreamResult
from penstock.transcript import Token, Word


@dataclass
class FileTranscript:
    """What was recognised in one file, or why it was not."""

    audio: str
    audio_s: float = 0.0
    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    alternatives: list[Alternative] = field(default_factory=list)
    error: str | None = None

    def add(self, result: StreamResult) -> None:
        """Takes in one result of the file's stream."""
        self.text = result.text
        self.tokens += result.tokens
        self.words += result.words
        self.alternatives += result.alternatives


class _OpenFile:
    def __init__(self, index: int, samples: np.ndarray, transcript: FileTranscript, options: dict):
        self.index, self.samples, self.transcript = index, samples, transcript
        self.options = options
        self.position = 0

    def next_request(self, piece_samples: int) -> AudioRequest:
        start, self.position = self.position, self.position + piece_samples
        piece = self.samples[start : self.position]
        options = self.options if start == 0 else {}
        return AudioRequest(self.index, piece, is_start=start == 0, is_end=self.is_done, options=options)

    @property
    def is_done(self) -> bool:
        return self.position >= len(self.samples)


class FileTranscriber:
    """Streams files in pieces of `piece_samples`, at most as many at once as the recogniser has streams."""

    def __init__(self, recognizer: StreamingRecognizer, piece_samples: int, options: dict | None = None):
        """options: of every stream, as in `penstock.stream_options`."""
        self._recognizer = recognizer
        self._piece_samples = piece_samples
        self._options = options or {}

    def transcribe(self, paths: Iterable[str | Path]) -> Iterator[FileTranscript]:
        """Yields one transcript a file, in the order of `paths`; a file that fails has `error` set."""
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
        """Opens the next files while there is room; returns whether more may be waiting."""
        while len(open_files) < self._recognizer.table.max_streams:
            index, path = next(waiting, (None, None))
            if index is None:
                return False
            transcript = FileTranscript(str(path))
            try:
                samples = read_audio(path, self._recognizer.sample_rate_hz)
            except AudioError as error:
                transcript.error = str(error)
                finished[index] = transcript
                return True  # so that results before it come out first
            transcript.audio_s = len(samples) / self._recognizer.sample_rate_hz
            open_files.append(_OpenFile(index, samples, transcript, self._options))
        return True

    def _advance(self, open_files: list[_OpenFile], finished: dict[int, FileTranscript]) -> list[_OpenFile]:
        """Pushes one piece of each open file; returns the files that still have audio."""
        results = self._recognizer.process([file.next_request(self._piece_samples) for file in open_files])
        for file, result in zip(open_files, results, strict=True):
            if isinstance(result, StreamError):
                file.transcript.error = f"{file.transcript.audio}: {result}"
                self._recognizer.process([AudioRequest(file.index, np.zeros(0, np.float32), is_end=True)])
            else:
                file.transcript.add(result)
            if file.is_done or file.transcript.error:
                finished[file.index] = file.transcript
        return [file for file in open_files if file.index not in finished]
