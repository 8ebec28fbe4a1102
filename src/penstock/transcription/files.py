"""Transcribes audio files through a recognizer, several at once."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.decoding.wfst.n_best import SegmentLattice
from penstock.errors import AudioError, StreamError
from penstock.frontend.audio_file import AudioBlocks, AudioSource, AudioTrack, FilePart
from penstock.pipeline.results.results import Alternative, StreamResult
from penstock.pipeline.results.words import Token, Word
from penstock.pipeline.stages.audio_rows import AudioRequest
from penstock.recognizer import Recognizer
from penstock.speakers.turns import Turn
from penstock_common.audio.monitors import SpeechMonitor
from penstock_common.audio.pcm import Remark
from penstock_common.audio.tracks import MIX, Channel
from penstock_common.writing import join_texts

AudioPath = str | Path | FilePart
OnAudio = Callable[[float], None]
"""Called with the seconds of audio of every step."""
_READ_SAMPLES = 1 << 17
"""Samples of a request with a part of a whole file."""


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
    """Transcript of one file or part of a file, or of one of its channels.

    A truncated file has the text up to its end, and a remark.
    """

    audio: str
    """The file."""
    channel: str | None = None
    """Name of the channel where each channel is transcribed, else None."""
    audio_s: float = 0.0
    text: str = ""
    language: str = ""
    """The last that the model's tags name; "" for a model without tags."""
    known_language: str = ""
    """The language of its stream by its options and the model; "" where it is not known."""
    segments: list[FileSegment] = field(default_factory=list)
    """Each but the last is final."""
    tokens: list[Token] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    alternatives: list[Alternative] = field(default_factory=list)
    """Alternatives of the last final segment."""
    lattice: SegmentLattice | None = None
    """With the alternatives of a search over a decoding graph."""
    error: str | None = None
    turns: list[Turn] | None = None
    """Speaker turns; None without a speaker model."""
    speakers: list[int] = field(default_factory=list)
    """The speaker of each word, from 1."""
    start_s: float = 0.0
    """The time of the first sample in the file, which counts in the times of words."""
    remarks: list[Remark] = field(default_factory=list)
    """On the audio and its text, such as where samples are missing."""
    part: FilePart | None = None
    """The file or part as it was opened; None: the whole file."""

    @property
    def audio_name(self) -> str:
        """The file, with the times of the part."""
        return str(self.part or self.audio)

    @property
    def name(self) -> str:
        """The file or part, and the channel if each is transcribed."""
        return self.audio_name if self.channel is None else f"{self.audio_name} [{self.channel}]"

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

    def __init__(self, index: int, audio: AudioBlocks, options: dict, recognizer: Recognizer):
        self.index, self._audio, part = index, audio, audio.part
        language = recognizer.languages.known(options.get("language"))
        self.tracks: list[_OpenTrack] = []
        for number, track in enumerate(audio.tracks):
            transcript = FileTranscript(part.path, track.channel, known_language=language, part=part)
            transcript.start_s = audio.start_s
            self.tracks.append(_OpenTrack((index, number), track, transcript, options, recognizer.sample_rate_hz))

    @property
    def is_done(self) -> bool:
        return all(track.is_done for track in self.tracks)

    def close(self) -> list[FileTranscript]:
        """Closes the file; returns its transcripts."""
        for track in self.tracks:
            on_text = (each._replace(start_s=each.start_s + self._audio.start_s) for each in track.monitor.remarks)
            track.transcript.remarks = [*self._audio.remarks, *on_text]
        self._audio.close()
        return [track.transcript for track in self.tracks]


class _OpenTrack:
    """A track of an open file, and its stream."""

    def __init__(
        self, stream_id: tuple[int, int], audio: AudioTrack, transcript: FileTranscript, options: dict, rate_hz: int
    ):
        """stream_id: the numbers of the file and of the track."""
        self.stream_id, self._audio, self.transcript, self._options = stream_id, audio, transcript, options
        self._is_started = self._has_ended = False
        self.samples = 0
        self.monitor = SpeechMonitor(rate_hz)
        """Has remarks on the text, in the track's time."""

    @property
    def is_done(self) -> bool:
        return self._has_ended or self.transcript.error is not None

    @property
    def is_read(self) -> bool:
        return self._audio.is_done or self.is_done

    def add(self, result: StreamResult) -> None:
        """Adds a result with its earlier ones."""
        for entry in result.entries:
            self.monitor.note(entry.words, entry.audio_processed_s, entry.text, entry.is_final)
            self.transcript.add(entry)

    def next_request(self, samples: int, may_end: bool) -> AudioRequest:
        """may_end: False leaves the end to a later request. Raises AudioError where the file proves unusable."""
        read = self._audio.read(samples)
        self.samples += len(read)
        self.monitor.add(read)
        is_start, self._is_started, self._has_ended = not self._is_started, True, may_end and self._audio.is_done
        return AudioRequest(self.stream_id, read, is_start, self._has_ended, self._options if is_start else {})


NumberedPath = tuple[int, AudioPath]
NumberedTranscripts = Iterator[tuple[int, list[FileTranscript]]]
"""The number of each file, and its transcripts."""


def ignore(audio_s: float) -> None:
    """Shows no progress."""


class Transcriber(ABC):
    """Makes transcripts of files."""

    def transcribe(self, paths: Iterable[AudioPath]) -> Iterator[FileTranscript]:
        """Yields one transcript per file, in the order of `paths`; a file that fails has `error` set.

        With channel "each" every channel of a file has its own.
        """
        for _, transcripts in in_order(self.transcribe_numbered(enumerate(paths))):
            yield from transcripts

    @abstractmethod
    def transcribe_numbered(self, files: Iterable[NumberedPath], on_audio: OnAudio = ignore) -> NumberedTranscripts:
        """Yields the number and the transcripts of each file as soon as it is done.

        files: the next one is taken when there is room for it. Parts of one file in a row, by their begin, share its
        decoder.
        """


class FileTranscriber(Transcriber):
    """Makes a stream of each file, at most as many at once as the recognizer has streams.

    Live streams advance side by side. Whole files of an offline model are read until they fill a batch, and then
    recognized together.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        request_samples: int,
        options: dict | Sequence[dict] | None = None,
        channel: Channel = MIX,
    ):
        """request_samples: of a live stream; 0 for whole files. options: of every stream
        (`penstock.pipeline.options.stream_options`), or a sequence: of each file.
        """
        self._recognizer = recognizer
        self._request_samples = request_samples
        self._options = options or {}
        self._channel = channel

    def transcribe_numbered(self, files: Iterable[NumberedPath], on_audio: OnAudio = ignore) -> NumberedTranscripts:
        """Implements `Transcriber`; there is room for a file when a stream is free and whole files do not fill a batch.

        Where the caller stops before the last file, the open files and their streams are closed.
        """
        open_files: list[_OpenFile] = []
        source = AudioSource(self._recognizer.sample_rate_hz, self._channel)
        try:
            yield from self._transcribe(iter(files), source, open_files, on_audio)
        finally:
            source.close()
            for file in open_files:
                file.close()
                for track in file.tracks:
                    self._recognizer.cancel(track.stream_id)

    def _transcribe(
        self, waiting: Iterator[NumberedPath], source: AudioSource, open_files: list[_OpenFile], on_audio: OnAudio
    ) -> NumberedTranscripts:
        """Keeps `open_files` to those that are not done."""
        tracks: list[_OpenTrack] = []
        """Streams that run or wait, those of one file side by side."""
        has_more = True
        while has_more or open_files:
            while has_more and self._has_room(tracks):
                entry = next(waiting, None)
                if entry is None:
                    has_more = False
                    break
                index, part = entry[0], FilePart.of(entry[1])
                options = self._options if isinstance(self._options, dict) else self._options[index]
                try:
                    file = _OpenFile(index, source.open(part), options, self._recognizer)
                except AudioError as error:
                    yield index, [FileTranscript(part.path, error=str(error), part=part)]
                    continue
                open_files.append(file)
                tracks += file.tracks
                self._read(tracks)
            self._advance(tracks[: self._recognizer.table.max_streams], on_audio)
            for file in [file for file in open_files if file.is_done]:
                open_files.remove(file)
                yield file.index, file.close()
            tracks = [track for track in tracks if not track.is_done]
            self._read(tracks)

    def _has_room(self, tracks: list[_OpenTrack]) -> bool:
        read_s = sum(track.samples for track in tracks) / self._recognizer.sample_rate_hz
        is_full = not self._request_samples and read_s >= self._recognizer.batch_audio_s
        return len(tracks) < self._recognizer.table.max_streams and not is_full

    def _read(self, tracks: list[_OpenTrack]) -> None:
        """Sends all samples of whole files."""
        if not self._request_samples:
            first = tracks[: self._recognizer.table.max_streams]
            while unread := [track for track in first if not track.is_read]:
                self._send(unread, _READ_SAMPLES, may_end=False)

    def _advance(self, tracks: list[_OpenTrack], on_audio: OnAudio) -> None:
        """Sends one request per track; of whole files, which have been read, their ends."""
        if self._request_samples:
            before = sum(track.samples for track in tracks)
            self._send(tracks, self._request_samples)
            on_audio((sum(track.samples for track in tracks) - before) / self._recognizer.sample_rate_hz)
            return
        shown_s = 0.0

        def note(done_s: float) -> None:
            nonlocal shown_s
            on_audio(done_s - shown_s)
            shown_s = done_s

        self._send([track for track in tracks if not track.is_done], 0, note=note)

    def _send(self, tracks: list[_OpenTrack], samples: int, may_end: bool = True, note: OnAudio = ignore) -> None:
        requests: list[AudioRequest] = []
        sent: list[_OpenTrack] = []
        for track in tracks:
            try:
                requests.append(track.next_request(samples, may_end))
                sent.append(track)
            except AudioError as error:
                track.transcript.error = str(error)
                self._recognizer.cancel(track.stream_id)
        results = self._recognizer.process(requests, note)
        for track, result in zip(sent, results, strict=True):
            if isinstance(result, StreamError):
                self._recognizer.cancel(track.stream_id)
                message = result.message.removeprefix(f"stream {track.stream_id!r}: ")
                track.transcript.error = f"{result.code}: {track.transcript.audio_name}: {message}"
                continue
            track.transcript.audio_s = track.samples / self._recognizer.sample_rate_hz
            track.add(result)


def in_order(numbered: Iterable[tuple[int, list[FileTranscript]]]) -> NumberedTranscripts:
    """Yields what has the numbers 0, 1, 2 ..., each as soon as those before it have come."""
    early: dict[int, list[FileTranscript]] = {}
    next_number = 0
    for number, transcripts in numbered:
        early[number] = transcripts
        while next_number in early:
            yield next_number, early.pop(next_number)
            next_number += 1
