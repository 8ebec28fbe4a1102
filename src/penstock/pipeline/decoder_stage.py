"""Third stage: encoder frames in, words out.

Groups a batch by stream decoder. Independent of searches and of the network's heads.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from penstock.decoding.host_copy import copy_to_device
from penstock.errors import ErrorCode, StreamError
from penstock.graphs.select import select_driver
from penstock.kernels.capability import TORCH, resolve
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.decoder_builder import DecoderParts, build_stream_decoders
from penstock.pipeline.decoder_offer import offer_decoders
from penstock.pipeline.decoding_config import DEFAULT_DECODING, DecodingConfig
from penstock.pipeline.decoding_steps import SegmentPart, Step, Steps, StreamEndpoints
from penstock.pipeline.language_offer import offer_languages
from penstock.pipeline.results import StreamResult, StreamText
from penstock.pipeline.rounds import process_in_rounds
from penstock.pipeline.slots.guard import NOT_COUNTED, STEP_ERRORS, SlotGuard
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import Lease
from penstock.pipeline.slots.ticket import END, FINALIZE, NO_ROW, START, Column, Ticket
from penstock.pipeline.stream_decoders import Chunk, Decoded
from penstock.pipeline.stream_fusion import StreamFusion
from penstock.pipeline.stream_options import StreamOptions
from penstock.pipeline.truncation import NO_TRUNCATION, TruncationCounters, TruncationLog
from penstock.runtime import check_device_works, prepare_device, send_to_device

MAX_CAPTURED_BATCH = 64
"""`max_batch_size` in the decoder's config.pbtxt. Larger batches are decoded without CUDA graphs."""


@dataclass(slots=True)
class DecoderRequest:
    """The encoder frames that one request of one stream completed, zero or more."""

    lease: Lease
    encoded: torch.Tensor
    """[T, D] float32"""
    covered_samples: int
    """Samples of the stream that the frames cover so far, as in `penstock.frontend.log_mel.MelChunks`."""
    is_start: bool
    is_end: bool
    options: StreamOptions | None = None
    """The stream's options, with its start; None stands for the defaults."""
    finalize: bool = False
    """A segment ends with this request and the stream continues."""
    number: int = NOT_COUNTED
    """The stream's requests before this one."""
    wants_result: bool = True
    """False where the client gets only news: the result of a request that decodes nothing may be left out."""

    @property
    def is_final(self) -> bool:
        """True if a segment ends with this request."""
        return self.is_end or self.finalize

    @property
    def flags(self) -> int:
        """The flags of its row of a ticket."""
        return START * self.is_start + END * self.is_end + FINALIZE * self.finalize


class DecodedRows(NamedTuple):
    """The replies to the rows of one Triton request."""

    answers: dict[int, StreamResult | StreamError]
    """By row. A row of a batched request that decoded nothing has none."""
    is_batched: bool

    @property
    def errors(self) -> dict[int, StreamError]:
        """The rejected rows."""
        return {row: answer for row, answer in self.answers.items() if isinstance(answer, StreamError)}


class DecoderStage:
    """Decodes a batch of streams from their saved states, each with the decoder of its options."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        slots: int,
        ledger: SlotLedger,
        device: str = "cpu",
        decoding: DecodingConfig = DEFAULT_DECODING,
        context: AttentionContext | None = None,
    ):
        """context: sets the chunk length that graphs are captured for; the checkpoint's default if None."""
        self._config = checkpoint.config
        self._device = prepare_device(device)
        self._chunk_encoder_frames = checkpoint.config.encoder.select_context(context).chunk_encoder_frames
        self._tokenizer = Tokenizer(checkpoint.tokenizer_path)
        self._fusion = StreamFusion(checkpoint, self._tokenizer, decoding, slots, device)
        offer, choice = offer_decoders(checkpoint.config, decoding), select_driver(decoding.cuda_graphs, device)
        parts = DecoderParts(
            checkpoint=checkpoint,
            decoding=decoding,
            fusion=self._fusion,
            driver=choice.driver,
            device=self._device,
            slots=slots,
            max_batch=min(slots, MAX_CAPTURED_BATCH),
            chunk_encoder_frames=self._chunk_encoder_frames,
        )
        self._stream_decoders = build_stream_decoders(offer, parts)
        languages = offer_languages(checkpoint.config, decoding)
        self._default = StreamOptions(
            decoder=offer.default, ilm=offer.ilm.get(offer.default), prompt=languages.prompt(languages.default)
        )
        self._prompts = torch.zeros(slots, dtype=torch.int64, device=self._device) if languages.names else None
        """The prompt of each slot's stream."""
        self.driver_name = choice.driver.name
        """CUDA graph mode of the searches, for the log."""
        self.kernels = TORCH if offer.ilm else resolve(decoding.kernels, self._device, torch.float32)
        """Kernels of greedy search, "torch" or "fused", for the log."""
        self._options = [StreamOptions()] * slots
        self._texts: dict[int, StreamText] = {}  # by slot
        self._endpoints: dict[int, StreamEndpoints] = {}  # by slot, of streams with endpointing
        self._guard = SlotGuard("decoder", slots, ledger)

    @property
    def decoders(self) -> tuple[str, ...]:
        """Names of the decoders, for the log."""
        return tuple(self._stream_decoders)

    @property
    def truncation(self) -> TruncationCounters:
        """Truncation counters of all beams since the start."""
        totals = [log.total for log in self._truncation_logs()]
        return TruncationCounters(*map(sum, zip(NO_TRUNCATION, *totals, strict=True)))

    def _truncation_logs(self) -> list[TruncationLog]:
        logs = (getattr(decoder, "truncation", None) for decoder in self._stream_decoders.values())
        return [log for log in logs if log is not None]

    @torch.inference_mode()
    def warm_up(self, streams: int) -> None:
        """Decodes one chunk of `streams` streams with each decoder: memory is allocated before the first request."""
        slots = list(range(min(streams, len(self._options))))
        width = self._config.encoder.d_model
        encoded = torch.zeros(len(slots), self._chunk_encoder_frames, width, device=self._device)
        lengths = torch.full((len(slots),), self._chunk_encoder_frames, device=self._device)
        for decoder in self._stream_decoders.values():
            # Beam size 1: tensors have the shapes of a full beam, and a beam of silence must prune nothing.
            decoder.open(slots, [StreamOptions()] * len(slots))
            decoder.decode(Chunk(slots, encoded, lengths, [False] * len(slots), self._prompts_of(slots)))
        for log in self._truncation_logs():
            log.total = NO_TRUNCATION  # without weights, a graph search of silence fills its beam

    def process(self, requests: list[DecoderRequest]) -> list[StreamResult | StreamError]:
        """Returns for each request the stream's result or an error; requests of a stream in order.

        Raises DeviceLostError if no later step can succeed.
        """
        problems = [self._shape_problem(request.encoded) for request in requests]
        good = [request for request, problem in zip(requests, problems, strict=True) if problem is None]
        leases = np.array([(*r.lease, r.number, r.flags) for r in good], np.int64).reshape(len(good), 4)
        errors = self._guard.admit(*leases.T)
        answers = self._decode_in_order([request for row, request in enumerate(good) if row not in errors])
        self._guard.settle(leases[:, 0], leases[:, 1])
        decoded = (answer for answer in answers if answer is not None)  # all of them: each wants its result
        found = iter([errors[row] if row in errors else next(decoded) for row in range(len(good))])
        return [next(found) if problem is None else problem for problem in problems]

    def process_tickets(
        self, tickets: list[Ticket | StreamError], encoded: list[torch.Tensor]
    ) -> list[DecodedRows | StreamError]:
        """Returns the replies to a batch of Triton requests, or why one is rejected as a whole.

        encoded: of each request [T, D], the frames of all rows. Rows of a stream are processed in order. Raises
        DeviceLostError if no later step can succeed.
        """
        answers: list[DecodedRows | StreamError] = []
        good: list[tuple[Ticket, DecodedRows, torch.Tensor]] = []
        for ticket, frames in zip(tickets, encoded, strict=True):
            if isinstance(ticket, StreamError):
                answers.append(ticket)
                continue
            problem = self._shape_problem(frames)
            if problem is None and len(frames) != ticket.rows[:, Column.FRAMES].sum():
                message = f"{len(frames)} encoder frames are not those of the ticket"
                problem = StreamError(ErrorCode.REQUEST_INVALID, message)
            if problem is not None:
                answers.append(problem)
                continue
            reply = DecodedRows(dict(ticket.errors), ticket.is_batched)
            good.append((ticket, reply, frames))
            answers.append(reply)
        if not good:
            return answers
        # 1) all rows that were forwarded, with the request and the row in it that each belongs to
        rows = np.concatenate([ticket.rows for ticket, _, _ in good])
        sizes = [len(ticket.rows) for ticket, _, _ in good]
        request_of = np.repeat(np.arange(len(good)), sizes)
        row_of = np.concatenate([np.arange(size) for size in sizes])
        is_forwarded = rows[:, Column.SLOT] != NO_ROW[Column.SLOT]
        rows, request_of, row_of = rows[is_forwarded], request_of[is_forwarded], row_of[is_forwarded]
        slots, generations, numbers, flags = rows.T[: Column.FLAGS + 1]
        errors = self._guard.admit(slots, generations, numbers, flags)
        # 2) rows that decode or begin something, or whose client wants a result anyway
        is_direct = np.array([not ticket.is_batched for ticket, _, _ in good])[request_of]
        is_busy = (rows[:, Column.FRAMES] > 0) | (flags > 0) | is_direct
        is_busy[list(errors)] = False
        frames_of = torch.cat([one for *_, one in good]).split(rows[:, Column.FRAMES].tolist())
        busy = np.flatnonzero(is_busy).tolist()
        requests = [
            self._request(rows[place].tolist(), frames_of[place], good[request_of[place]][0], int(row_of[place]))
            for place in busy
        ]
        decoded = zip(busy, self._decode_in_order(requests), strict=True)
        self._guard.settle(slots, generations)
        # 3) what each request is answered
        for place, answer in (*errors.items(), *decoded):
            if answer is not None:
                good[request_of[place]][1].answers[int(row_of[place])] = answer
        return answers

    @staticmethod
    def _request(row: list[int], encoded: torch.Tensor, ticket: Ticket, number: int) -> DecoderRequest:
        slot, generation, order, flags, _, _, covered, _ = row
        return DecoderRequest(
            Lease(slot, generation), encoded, covered, bool(flags & START), bool(flags & END),
            ticket.options.get(number), bool(flags & FINALIZE), order, not ticket.is_batched,
        )  # fmt: skip

    def _decode_in_order(self, requests: list[DecoderRequest]) -> list[StreamResult | StreamError | None]:
        """The results or errors of admitted requests; those behind a failed one of their stream are rejected."""
        failed: set[Lease] = set()

        def decode(some: list[DecoderRequest]) -> list[StreamResult | StreamError | None]:
            found = iter(self._decode_round([request for request in some if request.lease not in failed]))
            why = "an earlier request of this stream failed in the decoder; start the stream again"
            answers = [
                self._guard.reject(*request.lease, why) if request.lease in failed else next(found) for request in some
            ]
            failed.update(
                request.lease for request, answer in zip(some, answers, strict=True) if isinstance(answer, StreamError)
            )
            return answers

        return process_in_rounds(decode, requests, lambda request: request.lease.slot)

    @torch.inference_mode()
    def _decode_round(self, requests: list[DecoderRequest]) -> list[StreamResult | StreamError | None]:
        """The results or errors of admitted requests, all of different streams."""
        answers: list = [None] * len(requests)
        try:
            self._open(requests, answers)
            decoded = self._decode([r for r, answer in zip(requests, answers, strict=True) if answer is None])
        except STEP_ERRORS as error:  # the states of these streams are undefined now
            check_device_works(self._device, error)
            return [
                self._guard.reject(*request.lease, f"the decoder failed: {error}") if answer is None else answer
                for request, answer in zip(requests, answers, strict=True)
            ]
        rows = iter(decoded)
        return [
            self._answer(request, next(rows)) if answer is None else answer
            for request, answer in zip(requests, answers, strict=True)
        ]

    def _shape_problem(self, encoded: torch.Tensor) -> StreamError | None:
        width = self._config.encoder.d_model
        if encoded.shape[1:] != (width,):  # a wrong shape would fail the whole batch
            return StreamError(
                ErrorCode.REQUEST_INVALID, f"encoder frames are {list(encoded.shape)}, expected [T, {width}]"
            )
        return None

    def _open(self, requests: list[DecoderRequest], answers: list) -> None:
        """Opens the streams that start; puts the error of a rejected one into `answers`."""
        opened = []
        for i, request in enumerate(requests):
            if answers[i] is not None or not request.is_start:
                continue
            slot = request.lease.slot
            try:
                options = request.options or self._default
                self._fusion.open(slot, options)
            except StreamError as error:
                self._guard.reject(*request.lease, error.message, error.code)
                answers[i] = error
                continue
            self._options[slot] = replace(options, phrases=())  # the phrase cache has them, once for all streams
            self._texts[slot] = StreamText(self._tokenizer, self._config, options.keeps_tags)
            self._endpoints.pop(slot, None)
            if options.endpoint.is_on:
                self._endpoints[slot] = StreamEndpoints(options.endpoint, self._config, self._chunk_encoder_frames)
            opened.append(slot)
        self._set_prompts(opened)
        self._begin(opened)

    def _set_prompts(self, slots: list[int]) -> None:
        if self._prompts is not None and slots:
            prompts = copy_to_device([self._options[slot].prompt for slot in slots], torch.int64, self._device)
            self._prompts.index_copy_(0, copy_to_device(slots, torch.int64, self._device), prompts)

    def _prompts_of(self, slots: list[int]) -> torch.Tensor | None:
        if self._prompts is None:
            return None
        return self._prompts.index_select(0, copy_to_device(slots, torch.int64, self._device))

    def _begin(self, slots: list[int], goes_on: bool = False) -> None:
        """Starts new streams or segments in `slots`, each in its stream decoder.

        goes_on: with the best hypotheses of the segments before.
        """
        by_decoder: dict[str, list[int]] = {}
        for slot in slots:
            by_decoder.setdefault(self._options[slot].decoder, []).append(slot)
        for name, group in by_decoder.items():
            decoder = self._stream_decoders[name]
            begin = decoder.begin_segment if goes_on else decoder.open
            begin(group, [self._options[slot] for slot in group])

    def _answer(self, request: DecoderRequest, parts: list[SegmentPart]) -> StreamResult | None:
        text = self._texts[request.lease.slot]
        if not (request.wants_result or any(part.is_final for part in parts) or text.unstable):
            decoded = parts[0].decoded
            if decoded is None or not (decoded.stable or decoded.unstable):
                return None
        *earlier, last = [
            text.unchanged(part.covered_samples)
            if part.decoded is None
            else text.update(part.decoded, part.covered_samples, part.is_final, part.next_start_samples)
            for part in parts
        ]
        if request.is_end:
            self._close(request.lease.slot)
        return replace(last, earlier=tuple(earlier)) if earlier else last

    def _close(self, slot: int) -> None:
        del self._texts[slot]
        self._endpoints.pop(slot, None)
        self._fusion.close(slot)

    def _decode(self, requests: list[DecoderRequest]) -> list[list[SegmentPart]]:
        """Decodes the requests, step by step; returns the parts of segments in each."""
        parts: list[list[SegmentPart]] = [[] for _ in requests]
        plain: dict[int, Step] = {}  # of streams without endpointing: one step with all frames
        running: dict[int, Steps] = {}
        for i, request in enumerate(requests):
            slot = request.lease.slot
            if slot in self._endpoints:
                running[i] = self._steps(request)
            elif request.encoded.shape[0] or request.is_final:
                plain[i] = Step(request.encoded, request.is_final, self._texts[slot].unstable)
            else:
                parts[i] = [SegmentPart(None, request.covered_samples, False, request.covered_samples)]
        decoded: dict[int, Decoded] = {}
        while plain or running:
            steps = dict(plain)
            for i, generator in [*running.items()]:
                try:
                    steps[i] = generator.send(decoded[i]) if decoded else next(generator)
                except StopIteration as stopped:
                    parts[i] = stopped.value
                    del running[i]
            slots = [requests[i].lease.slot for i in steps]
            decoded = dict(zip(steps, self._decode_step(slots, list(steps.values())), strict=True))
            for i in plain:
                covered = requests[i].covered_samples
                parts[i] = [SegmentPart(decoded[i], covered, requests[i].is_final, covered)]
            plain = {}
        finalized = [request for request in requests if request.finalize]
        for request in finalized:
            if endpoints := self._endpoints.get(request.lease.slot):
                endpoints.restart(request.covered_samples)
        self._begin([request.lease.slot for request in finalized])
        return parts

    def _steps(self, request: DecoderRequest) -> Steps:
        slot = request.lease.slot
        unstable = self._texts[slot].unstable
        return self._endpoints[slot].steps(request.encoded, request.covered_samples, request.is_final, unstable)

    def _decode_step(self, slots: list[int], steps: list[Step]) -> list[Decoded]:
        """Decodes one step each of different streams."""
        decoded = [Decoded([], step.unstable, []) for step in steps]
        by_decoder: dict[str, list[int]] = {}
        for i, (slot, step) in enumerate(zip(slots, steps, strict=True)):
            name = self._options[slot].decoder
            if step.encoded.shape[0] or not self._stream_decoders[name].needs_frames:
                by_decoder.setdefault(name, []).append(i)
        for name, rows in by_decoder.items():
            chunk = self._chunk([slots[i] for i in rows], [steps[i] for i in rows])
            for i, found in zip(rows, self._stream_decoders[name].decode(chunk), strict=True):
                decoded[i] = found
        self._begin([slot for slot, step in zip(slots, steps, strict=True) if step.is_endpoint], goes_on=True)
        return decoded

    def _chunk(self, slots: list[int], steps: list[Step]) -> Chunk:
        device = self._device
        lengths = copy_to_device([step.encoded.shape[0] for step in steps], torch.int64, device)
        padded = torch.nn.utils.rnn.pad_sequence([step.encoded for step in steps], batch_first=True)
        encoded = send_to_device(padded, device)
        return Chunk(slots, encoded, lengths, [step.is_final for step in steps], self._prompts_of(slots))
