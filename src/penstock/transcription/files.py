"""Transcribes audio files through the streaming recognizer, several at once."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.decoding.wfst.n_best import SegmentLattice
from penstock.errors import AudioError, StreamError
from penstock.frontend.audio_blocks import AudioBlocks, AudioTrack
from penstock.pipeline.results.results import Alternative, StreamResult
from penstock.pipeline.results.words import Token, Word
from penstock.pipeline.stages.audio_rows import AudioRequest
from penstock.recognizer import NO_SAMPLES, StreamingRecognizer
from penstock.speakers.turns import Turn
from penstock_client.audio.channels import MIX, Channel
from penstock_client.audio.remarks import Remark
from penstock_client.writing import join_texts

_StreamId = tuple[int, int]
"""Numbers of a file and of its track."""


@dataclass
class FileSegment:
    """A part of a transcript; without endpointing there is one."""

    text: str = ""
    words: int = 0
    """Number of its words, which follow those of the segments before."""
    tokens: int = 0
    """Number of its tokens, likewise; their timestamps count from the segment's start."""
    language: str = ""
    """The last that the model's tags name in it."""
    alternatives: list[Alternative] = field(default_factory=list)


@dataclass
class FileTranscript:
    """Transcript of one file, or of one of its channels. A truncated file has the text up to its end, and a remark."""

    audio: str
    channel: str | None = None
    """Name of the channel where each channel is transcribed, else None."""
    audio_s: float = 0.0
    text: str = ""
    language: str = ""
    """The last that the model's tags name; "" for a model without tags."""
    segments: list[FileSegment] = field(default_factory=list)
    """Each but the last is final."""
    tokens: list[Token] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    alternatives: list[Alternative] = field(default_factory=list)
    """Those of the last final segment."""
    lattice: SegmentLattice | None = None
    """With the alternatives of a search over a decoding graph."""
    error: str | None = None
    turns: list[Turn] | None = None
    """Who spoke when; None without a speaker model."""
    speakers: list[int] = field(default_factory=list)
    """The speaker of each word, from 1."""
    start_s: float = 0.0
    """The time of the first sample in the file, which counts in the times of words."""
    remarks: list[Remark] = field(default_factory=list)
    """Where samples are missing, and whether the channels cancel in their mix."""

    @property
    def name(self) -> str:
        """The file, and the channel if each is transcribed."""
        return self.audio if self.channel is None else f"{self.audio} [{self.channel}]"

    def add_all(self, result: StreamResult) -> None:
        """Adds a result with its earlier ones."""
        for entry in result.entries:
            self.add(entry)

    def add(self, result: StreamResult) -> None:
        """Adds one result of the file's stream, without earlier ones."""
        if result.segment == len(self.segments):
            self.segments.append(FileSegment())
        self.segments[-1].text = result.text
        self.segments[-1].words += len(result.words)
        self.segments[-1].tokens += len(result.tokens)
        self.text = join_texts(segment.text for segment in self.segments)
        self.language = result.language or self.language
        self.tokens += result.tokens
        self.words += self._placed(result.words)
        self.segments[-1].language = result.language
        alternatives = [replace(each, words=tuple(self._placed(each.words))) for each in result.alternatives]
        self.segments[-1].alternatives = alternatives
        self.alternatives = alternatives or self.alternatives
        self.lattice = result.lattice or self.lattice

    def _placed(self, words: Iterable[Word]) -> list[Word]:
        """The words on the time line of the file."""
        start_ms = round(1000 * self.start_s)
        return [each._replace(start_ms=each.start_ms + start_ms, end_ms=each.end_ms + start_ms) for each in words]


class _OpenFile:
    """A file that is being transcribed."""

    def __init__(self, index: int, path: str | Path, audio: AudioBlocks, options: dict):
        self.index, self._audio = index, audio
        self.transcripts = [FileTranscript(str(path), track.channel, start_s=audio.start_s) for track in audio.tracks]
        self.tracks = [
            _OpenTrack((index, number), track, transcript, options)
            for number, (track, transcript) in enumerate(zip(audio.tracks, self.transcripts, strict=True))
        ]

    @property
    def is_done(self) -> bool:
        return all(track.is_done for track in self.tracks)

    def close(self) -> None:
        """Closes the file."""
        for transcript in self.transcripts:
            transcript.remarks = self._audio.remarks
        self._audio.close()


class _OpenTrack:
    """A track of an open file, and its stream."""

    def __init__(self, stream_id: _StreamId, audio: AudioTrack, transcript: FileTranscript, options: dict):
        self.stream_id, self._audio, self.transcript, self._options = stream_id, audio, transcript, options
        self.is_started = False
        self.samples = 0
        """Samples that were read."""

    @property
    def is_done(self) -> bool:
        return self._audio.is_done or self.transcript.error is not None

    def next_request(self, samples: int) -> AudioRequest:
        """Raises AudioError where the file turns out to be unusable."""
        read = self._audio.read(samples)
        self.samples += len(read)
        is_start, self.is_started = not self.is_started, True
        return AudioRequest(self.stream_id, read, is_start, self._audio.is_done, self._options if is_start else {})


class Transcriber(ABC):
    """Makes transcripts of files."""

    def transcribe(self, paths: Iterable[str | Path]) -> Iterator[FileTranscript]:
        """Yields one transcript per file, in the order of `paths`; a file that fails has `error` set.

        With channel "each" every channel of a file has its own.
        """
        for _, transcripts in in_order(self.transcribe_numbered(enumerate(paths))):
            yield from transcripts

    @abstractmethod
    def transcribe_numbered(
        self, files: Iterable[tuple[int, str | Path]], on_audio: Callable[[float], None] = lambda audio_s: None
    ) -> Iterator[tuple[int, list[FileTranscript]]]:
        """Yields the number and the transcripts of each file as soon as it is done.

        files: numbers and paths; the next one is taken when there is room for it. on_audio: called with the seconds of
        audio of every step.
        """


class FileTranscriber(Transcriber):
    """Streams files in requests of `request_samples`, at most as many at once as the recognizer has streams."""

    def __init__(
        self,
        recognizer: StreamingRecognizer,
        request_samples: int,
        options: dict | Sequence[dict] | None = None,
        channel: Channel = MIX,
    ):
        """options: of every stream (`penstock.pipeline.options.stream_options`), or a sequence: of each file."""
        self._recognizer = recognizer
        self._request_samples = request_samples
        self._options = options or {}
        self._channel = channel

    def transcribe_numbered(
        self, files: Iterable[tuple[int, str | Path]], on_audio: Callable[[float], None] = lambda audio_s: None
    ) -> Iterator[tuple[int, list[FileTranscript]]]:
        """As in `Transcriber`; there is room for a file when a stream is free."""
        waiting = iter(files)
        open_files: list[_OpenFile] = []
        tracks: list[_OpenTrack] = []
        """Streams that run or wait, those of one file side by side."""
        has_more = True
        while has_more or open_files:
            while has_more and len(tracks) < self._recognizer.table.max_streams:
                entry = next(waiting, None)
                if entry is None:
                    has_more = False
                    break
                try:
                    file = self._open(*entry)
                except AudioError as error:
                    yield entry[0], [FileTranscript(str(entry[1]), error=str(error))]
                    continue
                open_files.append(file)
                tracks += file.tracks
            on_audio(self._advance(tracks[: self._recognizer.table.max_streams]))
            for file in [file for file in open_files if file.is_done]:
                file.close()
                open_files.remove(file)
                yield file.index, file.transcripts
            tracks = [track for track in tracks if not track.is_done]

    def _open(self, index: int, path: str | Path) -> _OpenFile:
        """Raises AudioError."""
        audio = AudioBlocks(path, self._recognizer.sample_rate_hz, self._channel)
        options = self._options if isinstance(self._options, dict) else self._options[index]
        return _OpenFile(index, path, audio, options)

    def _advance(self, tracks: list[_OpenTrack]) -> float:
        """Sends one request per track; returns the seconds of audio that were read."""
        requests: list[AudioRequest] = []
        sent: list[_OpenTrack] = []
        before = sum(track.samples for track in tracks)
        for track in tracks:
            try:
                requests.append(track.next_request(self._request_samples))
                sent.append(track)
            except AudioError as error:
                self._fail(track, str(error))
        results = self._recognizer.process(requests)
        for track, result in zip(sent, results, strict=True):
            if isinstance(result, StreamError):
                message = result.message.removeprefix(f"stream {track.stream_id!r}: ")
                self._fail(track, f"{result.code}: {track.transcript.audio}: {message}")
                continue
            track.transcript.audio_s = track.samples / self._recognizer.sample_rate_hz
            track.transcript.add_all(result)
        return (sum(track.samples for track in tracks) - before) / self._recognizer.sample_rate_hz

    def _fail(self, track: _OpenTrack, error: str) -> None:
        """Records the error and frees the stream's slot."""
        track.transcript.error = error
        if track.is_started:
            self._recognizer.process([AudioRequest(track.stream_id, NO_SAMPLES, is_end=True)])


def in_order(
    numbered: Iterable[tuple[int, list[FileTranscript]]],
) -> Iterator[tuple[int, list[FileTranscript]]]:
    """Yields what has the numbers 0, 1, 2 ..., each as soon as those before it have come."""
    early: dict[int, list[FileTranscript]] = {}
    next_number = 0
    for number, transcripts in numbered:
        early[number] = transcripts
        while next_number in early:
            yield next_number, early.pop(next_number)
            next_number += 1
