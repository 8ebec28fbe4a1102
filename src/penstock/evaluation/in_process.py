"""Utterances through a recogniser in this process, many streams to a batch."""

from collections.abc import Iterator, Sequence

from penstock.evaluation.manifest import Utterance
from penstock.evaluation.outcome import Outcome
from penstock.file_transcriber import FileTranscriber
from penstock.recognizer import StreamingRecognizer


def recognise_in_process(
    recognizer: StreamingRecognizer, utterances: Sequence[Utterance], options: dict | None = None
) -> Iterator[Outcome]:
    """Outcomes in the order of the utterances. A stream pushes one chunk's worth of audio a step.

    options: of every stream, as in `penstock.stream_options`.
    """
    piece_samples = recognizer.config.encoder_frame_samples * recognizer.context.chunk_encoder_frames
    transcripts = FileTranscriber(recognizer, piece_samples, options).transcribe(u.audio for u in utterances)
    for index, transcript in enumerate(transcripts):
        yield Outcome(index, transcript.text, transcript.error)
