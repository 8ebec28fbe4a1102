"""The speakers of the decoder stage's streams, by slot."""

import numpy as np

from penstock.errors import ErrorCode, StreamError
from penstock.pipeline.options.stream_options import ResolvedOptions
from penstock.pipeline.results.results import StreamResult
from penstock.pipeline.results.speakers import StreamSpeakers
from penstock.pipeline.slots.ticket import END, FINALIZE, POLL
from penstock.pipeline.stages.decoder_rows import DecoderRows


class SpeakerPlaces:
    """Streams that asked for speakers; the others cost nothing here."""

    def __init__(self) -> None:
        self.streams: dict[int, StreamSpeakers] = {}
        """By slot."""

    def open(self, slot: int, options: ResolvedOptions, are_served: bool) -> None:
        """A stream begins. StreamError SPEAKERS_NOT_SERVED if it asks and did not come by the speaker model."""
        # Of the slot's last stream, whose END may never have come.
        self.streams.pop(slot, None)
        if not options.has_speakers:
            return
        if not are_served:
            message = "speakers are known only by asr_batch_speakers: send all rows of the stream there"
            raise StreamError(ErrorCode.SPEAKERS_NOT_SERVED, message)
        self.streams[slot] = StreamSpeakers(options.speakers if isinstance(options.speakers, int) else None)

    def place(self, rows: DecoderRows, places: np.ndarray, answers: dict[int, StreamResult | StreamError]) -> None:
        """Puts speakers into the answers to rows `places` [n] of different streams; results may wait for later rows."""
        for place in places.tolist():
            stream = self.streams.get(int(rows.slots[place]))
            if stream is None:
                continue
            # Before the answer: a row without one has frames, too, and the next ones count from them.
            stream.add(rows.speaker_frames.get(place))
            answer, flags = answers.pop(place, None), int(rows.flags[place])
            if isinstance(answer, StreamError):
                answers[place] = answer
            elif due := stream.place(answer, flags & FINALIZE > 0, flags & (END | POLL) > 0):
                answers[place] = due
