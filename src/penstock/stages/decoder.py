"""Third stage: encoder frames in, words out."""

from dataclasses import dataclass, field

import torch

from penstock.checkpoint import Checkpoint
from penstock.config import AttentionContext
from penstock.cuda_graphs import select_driver
from penstock.decoding.beam_state import BeamState
from penstock.decoding.host_copy import copy_to_device
from penstock.decoding.networks import TransducerNetwork
from penstock.decoding_config import DEFAULT_DECODING, DecodingConfig
from penstock.errors import StreamError, StreamErrorKind
from penstock.slot_ledger import SlotLedger
from penstock.stages.beam_losses import BeamLosses
from penstock.stages.decoder_lanes import BeamLane, Chunk, Decoded, DecoderLane, GreedyLane
from penstock.stages.decoder_searches import SearchMaker
from penstock.stages.slot_guard import STEP_ERRORS, SlotGuard, admit_all
from penstock.stages.stream_fusion import StreamFusion
from penstock.stages.stream_text import StreamResult, StreamText
from penstock.stream_options import BEAM_DECODERS, GREEDY, StreamOptions, parse_stream_options
from penstock.streams import Lease
from penstock.tokenizer import Tokenizer

LARGEST_CAPTURED_BATCH = 64
"""`max_batch_size` of the decoder's config.pbtxt; a larger batch is decoded without graphs."""


@dataclass(frozen=True)
class DecoderRequest:
    """The encoder frames that one request of one stream completed; maybe none."""

    lease: Lease
    encoded: torch.Tensor
    """[T, D]"""
    covered_samples: int
    """As in `penstock.features.MelChunks`."""
    is_start: bool
    is_end: bool
    options: dict = field(default_factory=dict)
    """Of the stream, with its start: see `penstock.stream_options`."""
    ends_segment: bool = False
    """The stream goes on behind this request as if it began there."""

    @property
    def is_final(self) -> bool:
        """True for the last request of a segment."""
        return self.is_end or self.ends_segment


class DecoderStage:
    """Decodes a batch of streams from their saved states, each in the way that it chose."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        slots: int,
        ledger: SlotLedger,
        device: str = "cpu",
        decoding: DecodingConfig = DEFAULT_DECODING,
        context: AttentionContext | None = None,
    ):
        """context: says how long a chunk is, the checkpoint's first by default; other lengths are decoded as well."""
        self._config = checkpoint.config
        choice = select_driver(decoding.cuda_graphs, device)
        self._chunk_encoder_frames = checkpoint.config.encoder.select_context(context).chunk_encoder_frames
        self._decoding = decoding
        self._network = TransducerNetwork(checkpoint, device, kernels=decoding.kernels)
        self._tokenizer = Tokenizer(checkpoint.tokenizer_path)
        self._fusion = StreamFusion(checkpoint, self._tokenizer, decoding, slots, device)
        captured_batch = min(slots, LARGEST_CAPTURED_BATCH)
        searches = SearchMaker(self._network, decoding, choice.driver, captured_batch, self._chunk_encoder_frames)
        beams = BeamState(self._network, slots, searches.beam_sizes)
        self._lanes: dict[str, DecoderLane] = {GREEDY: GreedyLane(searches, slots, self._fusion)}
        for name in BEAM_DECODERS:
            self._lanes[name] = BeamLane(name, searches, beams, self._fusion)
        self.driver_name = choice.driver.name
        """What runs the search that was prepared last, for the log."""
        self._choices = [StreamOptions()] * slots
        self._texts: list[StreamText | None] = [None] * slots
        self._guard = SlotGuard("decoder", slots, ledger)

    @property
    def kernels(self) -> str:
        """What greedy search runs on, "torch" or "fused", for the log."""
        return self._network.kernels

    @property
    def beam_losses(self) -> BeamLosses:
        """What all beams gave up so far."""
        of_lanes = [self._lanes[name].losses.total for name in BEAM_DECODERS]
        return BeamLosses(*map(sum, zip(*of_lanes, strict=True)))

    @torch.inference_mode()
    def rehearse(self, streams: int) -> None:
        """A chunk of so many streams in each lane, before there are any: its memory is then taken once and for all."""
        slots = list(range(min(streams, len(self._choices))))
        width = self._config.encoder.d_model
        encoded = torch.zeros(len(slots), self._chunk_encoder_frames, width, device=self._network.device)
        lengths = torch.full((len(slots),), self._chunk_encoder_frames, device=self._network.device)
        frame_rows = self._network.project_encoder(encoded)
        for lane in self._lanes.values():
            # Of one hypothesis: the tensors are those of a whole beam, and a beam of silence must lose none.
            lane.open(slots, [StreamOptions()] * len(slots))
            lane.decode(Chunk(slots, frame_rows, lengths, [False] * len(slots)))

    @torch.inference_mode()
    def process(self, requests: list[DecoderRequest]) -> list[StreamResult | StreamError]:
        """Answers each request (all of different streams) with the stream's words so far or with an error."""
        answers: list = admit_all(requests, self._admit)
        try:
            self._open(requests, answers)
            decoded = self._decode([r for r, answer in zip(requests, answers, strict=True) if answer is None])
        except STEP_ERRORS as error:  # these streams' states can no longer be trusted
            return [
                self._guard.refuse(request.lease, f"the decoder failed: {error}") if answer is None else answer
                for request, answer in zip(requests, answers, strict=True)
            ]
        rows = iter(decoded)
        return [
            self._answer(request, next(rows)) if answer is None else answer
            for request, answer in zip(requests, answers, strict=True)
        ]

    def _admit(self, request: DecoderRequest) -> StreamError | None:
        width = self._config.encoder.d_model
        if request.encoded.shape[1:] != (width,):  # would cost the whole batch
            found = list(request.encoded.shape)
            return StreamError(StreamErrorKind.INVALID_ARGUMENT, f"encoder frames are {found}, expected [T, {width}]")
        return self._guard.admit(request.lease, request.is_start)

    def _open(self, requests: list[DecoderRequest], answers: list) -> None:
        """Sets up the streams that start; one that cannot be has its error in `answers`."""
        opened = []
        for i, request in enumerate(requests):
            if answers[i] is not None or not request.is_start:
                continue
            slot = request.lease.slot
            try:
                options = parse_stream_options(request.options, self._decoding)
                self._fusion.open(slot, options)
            except StreamError as error:
                self._guard.refuse(request.lease, str(error))
                answers[i] = error
                continue
            self._choices[slot] = options
            self._texts[slot] = StreamText(self._tokenizer, self._config)
            opened.append(slot)
        self._begin(opened)

    def _begin(self, slots: list[int]) -> None:
        """Lets the streams in `slots` begin, or begin a segment, in the lanes that they chose."""
        by_lane: dict[str, list[int]] = {}
        for slot in slots:
            by_lane.setdefault(self._choices[slot].decoder, []).append(slot)
        for name, some in by_lane.items():
            self._lanes[name].open(some, [self._choices[slot] for slot in some])

    def _answer(self, request: DecoderRequest, decoded: Decoded | None) -> StreamResult:
        slot, covered = request.lease.slot, request.covered_samples
        text = self._texts[slot]
        result = text.unchanged(covered) if decoded is None else text.update(decoded, covered, request.is_final)
        if request.is_end:
            self._texts[slot] = None
            self._fusion.close(slot)
        self._guard.settle(request.lease)
        return result

    def _decode(self, requests: list[DecoderRequest]) -> list[Decoded | None]:
        """None: the request brought nothing and ends nothing, as most do."""
        decoded: list[Decoded | None] = [None] * len(requests)
        by_lane: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            name = self._choices[request.lease.slot].decoder
            if len(request.encoded) or (request.is_final and not self._lanes[name].needs_frames):
                by_lane.setdefault(name, []).append(i)
            elif request.is_final:
                decoded[i] = Decoded([], self._texts[request.lease.slot].unstable, [])
        for name, rows in by_lane.items():
            for i, found in zip(rows, self._lanes[name].decode(self._chunk([requests[i] for i in rows])), strict=True):
                decoded[i] = found
        self._begin([request.lease.slot for request in requests if request.ends_segment])
        return decoded

    def _chunk(self, requests: list[DecoderRequest]) -> Chunk:
        device = self._network.device
        lengths = copy_to_device([len(r.encoded) for r in requests], torch.int64, device)
        encoded = torch.nn.utils.rnn.pad_sequence([r.encoded.to(device) for r in requests], batch_first=True)
        return Chunk(
            slots=[r.lease.slot for r in requests],
            frame_rows=self._network.project_encoder(encoded),
            lengths=lengths,
            is_end=[r.is_final for r in requests],
        )
