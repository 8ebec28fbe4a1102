"""The stages of `asr_batch_speakers` in one process, with signed tickets between them."""

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from penstock.errors import StreamError
from penstock.model.bundle import Checkpoint
from penstock.pipeline.offline.encoder import WindowEncoderStage
from penstock.pipeline.offline.features import WindowFeatureStage, WindowLimits
from penstock.pipeline.options.decoding_config import DEFAULT_DECODING, DecodingConfig
from penstock.pipeline.results.results import StreamResult
from penstock.pipeline.results.speakers import SpeakerFrames
from penstock.pipeline.slots.drain import DrainBoard
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import StreamTable, slot_count
from penstock.pipeline.slots.ticket import Ticket, TicketSigner
from penstock.pipeline.stages.audio_rows import AudioRequest, SpeakerAudio, rows_of
from penstock.pipeline.stages.decoder import DecoderStage
from penstock.pipeline.stages.encoder import EncoderStage
from penstock.pipeline.stages.features import FeatureStage
from penstock.pipeline.stages.speakers import SpeakerStage
from penstock.speakers.bundle import SpeakerCheckpoint

NO_SAMPLES = np.zeros(0, np.float32)
Answer = StreamResult | StreamError | None


class Limits(NamedTuple):
    """Streams that are admitted."""

    streams: int = 6
    speakers: int = 6


DEFAULT_LIMITS = Limits()


class SpeakerServer:
    """Features, encoder, speakers and decoder. `speakers` may be replaced, as a process is that was killed."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        bundle: SpeakerCheckpoint,
        limits: Limits = DEFAULT_LIMITS,
        decoding: DecodingConfig = DEFAULT_DECODING,
    ):
        slots = slot_count(limits.streams)
        self.now_s, self.limits, self.bundle = 1.0, limits, bundle
        self.ledger, self.board = SlotLedger(slots), DrainBoard(slots)
        self.table = StreamTable(
            limits.streams, self.ledger, 30.0, lambda: self.now_s, self.board, speaker_streams=limits.speakers
        )
        self.decoder = DecoderStage(checkpoint, slots, self.ledger, decoding=decoding)
        if checkpoint.config.encoder.is_offline:
            files = WindowLimits(16_000 * 3600, 16_000 * 36_000)
            self.features = WindowFeatureStage(checkpoint, self.table, files, decoding, speakers=bundle.config)
            self.encoder = WindowEncoderStage(checkpoint, slots, self.ledger, self.board, clock=lambda: self.now_s)
        else:
            context = checkpoint.config.encoder.select_context(None)
            self.features = FeatureStage(checkpoint, context, self.table, decoding, bundle.config)
            self.encoder = EncoderStage(checkpoint, context, slots, self.ledger)
        self._signer = TicketSigner(b"key")
        self.restart_speakers()

    def restart_speakers(self) -> None:
        """A new process, without states."""
        self.speakers = SpeakerStage(self.bundle, self.limits.speakers, self.board)

    def call(self, *requests: AudioRequest, has_speakers: bool = True) -> list[Answer]:
        """The answers to the rows of one request. has_speakers: by `asr_batch_speakers`, else by `asr_batch`."""
        rows = rows_of(requests, is_batched=True)
        (found,) = self.features.process_rows([rows])
        assert not isinstance(found, StreamError)
        packed = self._signer.pack(Ticket(found.rows, 0, True, found.options, found.errors))
        spoken = [None]
        if has_speakers:
            audio = SpeakerAudio(rows.samples, rows.lengths, rows.flags)
            spoken = self.speakers.process_tickets([self._signer.unpack(packed)], [audio])
            assert isinstance(spoken[0], SpeakerFrames)
        (encoded,) = self.encoder.process_tickets([self._signer.unpack(packed)], [found.mel])
        assert not isinstance(encoded, StreamError)
        if encoded.rows is not None:
            packed = self._signer.with_rows(packed, encoded.rows)
        (decoded,) = self.decoder.process_tickets(
            [self._signer.unpack(packed, reads_rest=True)], [encoded.encoded], spoken
        )
        assert not isinstance(decoded, StreamError)
        return [decoded.answers.get(row) for row in range(len(requests))]

    def send(
        self, name: Hashable, samples=NO_SAMPLES, start=False, end=False, options=None, finalize=False, **more
    ) -> Answer:
        """The answer to one row of one stream."""
        return self.call(AudioRequest(name, samples, start, end, options or {}, finalize), **more)[0]
