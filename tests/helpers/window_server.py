"""The three stages of an offline model in one process, as a server runs them: requests, polls and their replies."""

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np
import torch

from penstock.errors import StreamError
from penstock.model.bundle import Checkpoint
from penstock.pipeline.offline.encoder import WindowEncoderStage
from penstock.pipeline.offline.features import WindowFeatureStage, WindowLimits
from penstock.pipeline.options.decoding_config import DEFAULT_DECODING, DecodingConfig
from penstock.pipeline.results.results import StreamResult
from penstock.pipeline.slots.drain import DrainBoard
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import StreamTable, slot_count
from penstock.pipeline.slots.ticket import Ticket, TicketSigner
from penstock.pipeline.stages.audio_rows import AudioRequest, AudioRows, rows_of
from penstock.pipeline.stages.decoder import DecoderStage

RATE_HZ = 16_000
NO_SAMPLES = np.zeros(0, np.float32)
Reply = StreamResult | StreamError | None


class Upload(NamedTuple):
    """A file on its way."""

    samples: np.ndarray
    options: dict | None = None


class WindowServer:
    """Three stages with tickets between them, and a clock that tests set."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        max_streams: int = 12,
        limits: WindowLimits | None = None,
        idle_limit_s: float = 30.0,
        decoding: DecodingConfig = DEFAULT_DECODING,
        device: str = "cpu",
    ):
        self.checkpoint, slots = checkpoint, slot_count(max_streams)
        self.now_s = 1.0
        self.ledger, self.board = SlotLedger(slots), DrainBoard(slots)
        self.table = StreamTable(max_streams, self.ledger, idle_limit_s, lambda: self.now_s, self.board)
        limits = limits or WindowLimits(RATE_HZ * 3600, RATE_HZ * 36_000)
        self.features = WindowFeatureStage(checkpoint, self.table, limits, decoding)
        self.encoder = WindowEncoderStage(checkpoint, slots, self.ledger, self.board, device, clock=lambda: self.now_s)
        self.decoder = DecoderStage(checkpoint, slots, self.ledger, device, decoding)
        self._signer = TicketSigner(b"key")

    def call(self, *requests: AudioRequest, is_batched: bool = False) -> list[Reply]:
        """The replies to requests in one batch; with is_batched they are rows of one request, and some have none."""
        batch: list[AudioRows | StreamError] = (
            [rows_of(requests, is_batched=True)] if is_batched else [rows_of([request]) for request in requests]
        )
        replies = self._run(batch)
        return [replies[0].get(row) for row in range(len(requests))] if is_batched else [one[0] for one in replies]

    def _run(self, batch: list[AudioRows | StreamError]) -> list[dict[int, Reply]]:
        return self.finish(self.admit(batch))

    def admit(self, batch: list[AudioRows | StreamError]) -> "Admitted":
        """The features stage alone."""
        admitted = Admitted([{} for _ in batch], [], [], [])
        for place, found in enumerate(self.features.process_rows(batch)):
            if isinstance(found, StreamError):
                admitted.answers[place] = {0: found}
                continue
            ticket = Ticket(found.rows, 0, found.is_batched, found.options, found.errors)
            admitted.tickets.append(self._signer.pack(ticket))
            admitted.mels.append(found.mel)
            admitted.places.append(place)
        return admitted

    def finish(self, admitted: "Admitted") -> list[dict[int, Reply]]:
        """The other stages; returns the replies by row of each request."""
        answers, tickets, mels, places = admitted
        encoded = self.encoder.process_tickets([self._signer.unpack(ticket) for ticket in tickets], mels)
        decoder_tickets = []
        for ticket, reply in zip(tickets, encoded, strict=True):
            assert not isinstance(reply, StreamError)
            decoder_tickets.append(self._signer.unpack(self._signer.with_rows(ticket, reply.rows), reads_rest=True))
        decoded = self.decoder.process_tickets(decoder_tickets, [reply.encoded for reply in encoded])
        for place, reply in zip(places, decoded, strict=True):
            answers[place] = reply.answers
        return answers

    def send(self, name: Hashable, samples=NO_SAMPLES, start=False, end=False, options=None, finalize=False) -> Reply:
        """One request of one stream."""
        return self.call(AudioRequest(name, samples, start, end, options or {}, finalize))[0]

    def poll(self, *names: Hashable) -> list[Reply]:
        """One poll of each stream, in one batch."""
        return self.call(*(AudioRequest(name, NO_SAMPLES) for name in names))

    def transcribe(self, files: dict[Hashable, Upload], request_samples: int = 5 * RATE_HZ) -> dict[Hashable, "Done"]:
        """Sends all files side by side, polls each until its last reply; in the order in which they finish."""
        done: dict[Hashable, Done] = {}
        at, found = dict.fromkeys(files, 0), {name: Done([], []) for name in files}
        while len(done) < len(files):
            requests = []
            for name, (samples, options) in files.items():
                if name in done:
                    continue
                begin = at[name]
                part = samples[begin : begin + request_samples]
                is_end = begin < len(samples) <= begin + request_samples
                at[name] = min(begin + request_samples, len(samples))
                requests.append(AudioRequest(name, part, begin == 0, is_end, (options or {}) if begin == 0 else {}))
            for request, reply in zip(requests, self.call(*requests), strict=True):
                name, one = request.stream_id, found[request.stream_id]
                if isinstance(reply, StreamError):
                    one.errors.append(reply)
                    done[name] = one
                    continue
                one.replies.append(reply)
                if reply.is_final and reply.audio_processed_s * RATE_HZ == len(files[name].samples):
                    done[name] = one
        return done


class Admitted(NamedTuple):
    """Requests that the features stage has processed."""

    answers: list[dict[int, Reply]]
    """The errors of the requests that it has rejected, by row."""
    tickets: list[np.ndarray]
    mels: list[torch.Tensor]
    places: list[int]
    """The requests of the tickets."""


class Done(NamedTuple):
    """Replies and errors of a file."""

    replies: list[StreamResult]
    errors: list[StreamError]

    @property
    def progress_s(self) -> list[float]:
        return [reply.audio_processed_s for reply in self.replies]

    @property
    def segments(self) -> list[tuple]:
        """Text, tokens and words of each segment, without scores."""
        found: dict[int, tuple[str, list, list]] = {}
        for reply in self.replies:
            for entry in reply.entries:
                _, tokens, words = found.get(entry.segment, ("", [], []))
                tokens, words = tokens + [t[:3] for t in entry.tokens], words + [w[:3] for w in entry.words]
                found[entry.segment] = (entry.text, tokens, words)
        return list(found.values())
