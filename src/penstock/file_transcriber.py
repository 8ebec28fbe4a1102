"""Transcribes audio files through the streaming recognizer, several at once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.errors import AudioError, StreamError
from penstock.frontend.audio_file import load_audio
from penstock.frontend.channels import MIX, Channel
from penstock.pipeline.features_stage import AudioRequest
from penstock.pipeline.results import Alternative, StreamResult
from penstock.pipeline.words import Token, Word
from penstock.recognizer import StreamingRecognizer


@dataclass
class FileTranscript:
    """Transcript of one file, or of one of its channels. A truncated file has the text up to its end, and an error."""

    audio: str
    channel: str | None = None
    """Name of the channel where each channel is transcribed, else None."""
    audio_s: float = 0.0
    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    alternatives: list[Alternative] = field(default_factory=list)
    error: str | None = None
    warning: str | None = None
    """Set where the file's channels cancel in their mix."""

    @property
    def name(self) -> str:
        """The file, and the channel if each is transcribed."""
        return self.audio if self.channel is None else f"{self.audio} [{self.channel}]"

    def add(self, result: StreamResult) -> None:
        """Adds one result of the file's stream."""
        self.text = result.text
        self.tokens += result.tokens
        self.words += result.words
        self.alternatives += result.alternatives


class _OpenFile:
    """A file or channel that is being transcribed."""

    def __init__(self, samples: np.ndarray, transcript: FileTranscript, options: dict, problem: AudioError | None):
        self.index = 0
        """Number in the order of the files."""
        self.samples, self.transcript, self.options, self.problem = samples, transcript, options, problem
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

    def __init__(
        self,
        recognizer: StreamingRecognizer,
        request_samples: int,
        options: dict | None = None,
        channel: Channel = MIX,
    ):
        """options: for every stream, as in `penstock.pipeline.stream_options`."""
        self._recognizer = recognizer
        self._request_samples = request_samples
        self._options = options or {}
        self._channel = channel

    def transcribe(self, paths: Iterable[str | Path]) -> Iterator[FileTranscript]:
        """Yields one transcript per file, in the order of `paths`; a file that fails has `error` set.

        With channel "each" every channel of a file has its own.
        """
        waiting = enumerate(self._open(paths))
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

    def _open(self, paths: Iterable[str | Path]) -> Iterator[_OpenFile | FileTranscript]:
        """Each file or channel, read when it is asked for; a transcript with the error of a file that is unusable."""
        rate_hz = self._recognizer.sample_rate_hz
        for path in paths:
            try:
                audio = load_audio(path, rate_hz, self._channel)
            except AudioError as error:
                yield FileTranscript(str(path), error=str(error))
                continue
            problem = AudioError(audio.problem) if audio.problem else None
            for number, track in enumerate(audio.tracks, 1):
                is_last = number == len(audio.tracks)  # what concerns the whole file is told once
                transcript = FileTranscript(str(path), track.channel, len(track.samples) / rate_hz)
                transcript.warning = audio.warning if is_last else None
                yield _OpenFile(track.samples, transcript, self._options, problem if is_last else None)

    def _fill(
        self,
        waiting: Iterator[tuple[int, _OpenFile | FileTranscript]],
        open_files: list[_OpenFile],
        finished: dict[int, FileTranscript],
    ) -> bool:
        """Opens files while streams are free; returns whether more may be waiting."""
        while len(open_files) < self._recognizer.table.max_streams:
            entry = next(waiting, None)
            if entry is None:
                return False
            index, file = entry
            if isinstance(file, FileTranscript):
                finished[index] = file
                return True  # results before it are yielded first
            file.index = index
            open_files.append(file)
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
                if file.is_done and file.problem:
                    file.transcript.error = str(file.problem)
            if file.is_done or file.transcript.error:
                finished[file.index] = file.transcript
        return [file for file in open_files if file.index not in finished]
