"""Third stage: encoder frames in, words out.

Groups a batch by stream decoder. Independent of searches and of the network's heads.
"""

from dataclasses import dataclass, replace

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
from penstock.pipeline.decoding_steps import SegmentPart, Step, Steps, StreamEndpoints, steps_without_endpoints
from penstock.pipeline.language_offer import offer_languages
from penstock.pipeline.results import StreamResult, StreamText
from penstock.pipeline.slots.guard import STEP_ERRORS, SlotGuard, admit_all
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import Lease
from penstock.pipeline.stream_decoders import Chunk, Decoded
from penstock.pipeline.stream_fusion import StreamFusion
from penstock.pipeline.stream_options import StreamOptions
from penstock.pipeline.truncation import NO_TRUNCATION, TruncationCounters, TruncationLog
from penstock.runtime import check_device_works, prepare_device, send_to_device

MAX_CAPTURED_BATCH = 64
"""`max_batch_size` in the decoder's config.pbtxt. Larger batches are decoded without CUDA graphs."""


@dataclass(frozen=True)
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
    number: int | None = None
    """The stream's requests before this one, where they are counted."""

    @property
    def is_final(self) -> bool:
        """True if a segment ends with this request."""
        return self.is_end or self.finalize


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

    @torch.inference_mode()
    def process(self, requests: list[DecoderRequest]) -> list[StreamResult | StreamError]:
        """Returns for each request (all of different streams) the stream's result or an error.

        Raises DeviceLostError if no later step can succeed.
        """
        answers: list = admit_all(requests, self._admit)
        try:
            self._open(requests, answers)
            decoded = self._decode([r for r, answer in zip(requests, answers, strict=True) if answer is None])
        except STEP_ERRORS as error:  # the states of these streams are undefined now
            check_device_works(self._device, error)
            return [
                self._guard.reject(request.lease, f"the decoder failed: {error}") if answer is None else answer
                for request, answer in zip(requests, answers, strict=True)
            ]
        rows = iter(decoded)
        return [
            self._answer(request, next(rows)) if answer is None else answer
            for request, answer in zip(requests, answers, strict=True)
        ]

    def _admit(self, request: DecoderRequest) -> StreamError | None:
        width = self._config.encoder.d_model
        if request.encoded.shape[1:] != (width,):  # a wrong shape would fail the whole batch
            found = list(request.encoded.shape)
            return StreamError(ErrorCode.REQUEST_INVALID, f"encoder frames are {found}, expected [T, {width}]")
        return self._guard.admit(request.lease, request.is_start, request.number)

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
                self._guard.reject(request.lease, error.message, error.code)
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

    def _answer(self, request: DecoderRequest, parts: list[SegmentPart]) -> StreamResult:
        text = self._texts[request.lease.slot]
        *earlier, last = [
            text.unchanged(part.covered_samples)
            if part.decoded is None
            else text.update(part.decoded, part.covered_samples, part.is_final, part.next_start_samples)
            for part in parts
        ]
        if request.is_end:
            self._close(request.lease.slot)
        self._guard.settle(request.lease, request.is_end)
        return replace(last, earlier=tuple(earlier)) if earlier else last

    def _close(self, slot: int) -> None:
        del self._texts[slot]
        self._endpoints.pop(slot, None)
        self._fusion.close(slot)

    def _decode(self, requests: list[DecoderRequest]) -> list[list[SegmentPart]]:
        """Decodes the requests, step by step; returns the parts of segments in each."""
        parts: list[list[SegmentPart]] = [[] for _ in requests]
        running = {i: self._steps(request) for i, request in enumerate(requests)}
        decoded: dict[int, Decoded] = {}
        while running:
            steps: dict[int, Step] = {}
            for i, generator in [*running.items()]:
                try:
                    steps[i] = generator.send(decoded[i]) if decoded else next(generator)
                except StopIteration as stopped:
                    parts[i] = stopped.value
                    del running[i]
            slots = [requests[i].lease.slot for i in steps]
            decoded = dict(zip(steps, self._decode_step(slots, list(steps.values())), strict=True))
        finalized = [request for request in requests if request.finalize]
        for request in finalized:
            if endpoints := self._endpoints.get(request.lease.slot):
                endpoints.restart(request.covered_samples)
        self._begin([request.lease.slot for request in finalized])
        return parts

    def _steps(self, request: DecoderRequest) -> Steps:
        endpoints = self._endpoints.get(request.lease.slot)
        steps = steps_without_endpoints if endpoints is None else endpoints.steps
        unstable = self._texts[request.lease.slot].unstable
        return steps(request.encoded, request.covered_samples, request.is_final, unstable)

    def _decode_step(self, slots: list[int], steps: list[Step]) -> list[Decoded]:
        """Decodes one step each of different streams."""
        decoded = [Decoded([], step.unstable, []) for step in steps]
        by_decoder: dict[str, list[int]] = {}
        for i, (slot, step) in enumerate(zip(slots, steps, strict=True)):
            name = self._options[slot].decoder
            if len(step.encoded) or not self._stream_decoders[name].needs_frames:
                by_decoder.setdefault(name, []).append(i)
        for name, rows in by_decoder.items():
            chunk = self._chunk([slots[i] for i in rows], [steps[i] for i in rows])
            for i, found in zip(rows, self._stream_decoders[name].decode(chunk), strict=True):
                decoded[i] = found
        self._begin([slot for slot, step in zip(slots, steps, strict=True) if step.is_endpoint], goes_on=True)
        return decoded

    def _chunk(self, slots: list[int], steps: list[Step]) -> Chunk:
        device = self._device
        lengths = copy_to_device([len(step.encoded) for step in steps], torch.int64, device)
        encoded = torch.nn.utils.rnn.pad_sequence(
            [send_to_device(step.encoded, device) for step in steps], batch_first=True
        )
        return Chunk(slots, encoded, lengths, [step.is_final for step in steps], self._prompts_of(slots))
