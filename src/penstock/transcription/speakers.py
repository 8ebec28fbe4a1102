"""Says of each transcript who speaks: the file is read once more, for the speaker model."""

from collections.abc import Iterable

import numpy as np
import torch

from penstock.errors import PenstockError, StreamError
from penstock.frontend.audio_file import AudioSource
from penstock.speakers.diarizer import Diarizer
from penstock.speakers.turns import speakers_of, turns
from penstock.transcription.files import (
    FileTranscript,
    NumberedPath,
    NumberedTranscripts,
    OnAudio,
    Transcriber,
    ignore,
)
from penstock_common.audio.tracks import Channel

_READ_SAMPLES = 1 << 16


class SpeakerTranscriber(Transcriber):
    """The transcripts of another transcriber, with turns and a speaker for each word."""

    def __init__(self, inner: Transcriber, diarizer: Diarizer, channel: Channel):
        self._inner, self._diarizer, self._channel = inner, diarizer, channel

    def transcribe_numbered(self, files: Iterable[NumberedPath], on_audio: OnAudio = ignore) -> NumberedTranscripts:
        """Implements `Transcriber.transcribe_numbered`."""
        source = AudioSource(self._diarizer.config.features.sample_rate_hz, self._channel)
        try:
            for number, transcripts in self._inner.transcribe_numbered(files, on_audio):
                if any(transcript.error is None for transcript in transcripts):
                    self._add(transcripts, source)
                yield number, transcripts
        finally:
            source.close()

    def _add(self, transcripts: list[FileTranscript], source: AudioSource) -> None:
        try:
            audio = source.open(transcripts[0].part or transcripts[0].audio)
            try:
                recordings = [self._diarizer.open() for _ in audio.tracks]
                while not all(track.is_done for track in audio.tracks):
                    for track, recording in zip(audio.tracks, recordings, strict=True):
                        recording.add(torch.from_numpy(np.asarray(track.read(_READ_SAMPLES), np.float32)))
            finally:
                audio.close()
            for transcript, recording in zip(transcripts, recordings, strict=True):
                self._place(transcript, recording.end())
        except (PenstockError, StreamError) as error:  # the words are kept
            for transcript in transcripts:
                transcript.error = transcript.error or str(error)

    def _place(self, transcript: FileTranscript, probabilities: torch.Tensor) -> None:
        hop_s, start_s = self._diarizer.hop_s, transcript.start_s
        times_ms = [(word.start_ms, word.end_ms) for word in transcript.words]
        transcript.turns = turns(probabilities, hop_s, start_s)
        transcript.speakers = speakers_of(times_ms, probabilities.numpy(), 1000 * hop_s, 1000 * start_s)
