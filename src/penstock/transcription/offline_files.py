"""Transcribes audio files through an offline model: whole files, several in one batch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.errors import AudioError, StreamError
from penstock.frontend.audio_blocks import AudioBlocks
from penstock.transcription.files import FileTranscript, Transcriber
from penstock.transcription.offline import OfflineRecognizer
from penstock.transcription.recording import Recording
from penstock_client.audio.channels import MIX, Channel

_READ_SAMPLES = 1 << 16


class _File(NamedTuple):
    """A file that has been read; its lists have one entry per track."""

    number: int
    transcripts: list[FileTranscript]
    recordings: list[Recording | StreamError]

    @property
    def audio_s(self) -> float:
        """Of all tracks."""
        return sum(transcript.audio_s for transcript in self.transcripts)


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
        """Reads a file block by block, of which only the log-mel is kept. Raises AudioError."""
        rate_hz = self._recognizer.sample_rate_hz
        audio = AudioBlocks(path, rate_hz, self._channel)
        try:
            recordings = [self._open(index) for _ in audio.tracks]
            samples = [0] * len(recordings)
            while not all(track.is_done for track in audio.tracks):
                for number, (track, recording) in enumerate(zip(audio.tracks, recordings, strict=True)):
                    block = track.read(_READ_SAMPLES)
                    samples[number] += len(block)
                    if isinstance(recording, Recording):
                        recording.add(block)
        finally:
            audio.close()
        for recording in recordings:
            if isinstance(recording, Recording):
                recording.end()
        transcripts = [
            FileTranscript(str(path), track.channel, count / rate_hz, start_s=audio.start_s, remarks=audio.remarks)
            for track, count in zip(audio.tracks, samples, strict=True)
        ]
        return _File(index, transcripts, recordings)

    def _open(self, index: int) -> Recording | StreamError:
        try:
            return self._recognizer.open(self._options if isinstance(self._options, dict) else self._options[index])
        except StreamError as error:
            return error

    def _fits(self, batch: Sequence[_File]) -> bool:
        tracks, seconds = sum(len(file.recordings) for file in batch), sum(file.audio_s for file in batch)
        return tracks <= self._recognizer.max_batch and seconds <= self._recognizer.batch_audio_s

    def _has_room(self, batch: Sequence[_File]) -> bool:
        return sum(len(file.recordings) for file in batch) < self._recognizer.max_batch and self._fits(batch)

    def _recognize(
        self, batch: Sequence[_File], on_audio: Callable[[float], None]
    ) -> Iterator[tuple[int, list[FileTranscript]]]:
        if not batch:
            return
        shown_s = 0.0

        def note(share: float) -> None:
            nonlocal shown_s
            done_s = share * audio_s
            on_audio(done_s - shown_s)
            shown_s = done_s

        audio_s = sum(file.audio_s for file in batch)
        results = iter(self._recognizer.recognize([one for file in batch for one in file.recordings], note))
        note(1.0)
        for file in batch:
            for transcript in file.transcripts:
                result = next(results)
                if isinstance(result, StreamError):
                    transcript.error = f"{result.code}: {transcript.audio}: {result.message}"
                else:
                    transcript.add_all(result)
            yield file.number, file.transcripts
