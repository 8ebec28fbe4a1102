"""Third stage: encoder frames in, words out."""

from dataclasses import dataclass, field

import torch

from penstock.checkpoint import Checkpoint
from penstock.config import AttentionContext, ModelConfig
from penstock.cuda_graphs import select_driver
from penstock.decoding.beam_search import BeamAlgorithm, BeamSearch
from penstock.decoding.beam_sizes import BeamSizes
from penstock.decoding.beam_state import BeamState
from penstock.decoding.networks import TransducerNetwork
from penstock.errors import StreamError
from penstock.slot_ledger import SlotLedger
from penstock.stages.decoder_lanes import BeamLane, Chunk, Decoded, DecoderLane, Driving, GreedyLane
from penstock.stages.slot_guard import STEP_ERRORS, SlotGuard
from penstock.stages.stream_fusion import StreamFusion
from penstock.stream_options import (
    BEAM_DECODERS,
    DEFAULT_DECODING,
    GREEDY,
    DecodingConfig,
    StreamOptions,
    parse_stream_options,
)
from penstock.streams import Lease
from penstock.tokenizer import Tokenizer
from penstock.transcript import Token, Transcript, Word

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


@dataclass(frozen=True)
class Alternative:
    """One of the n best readings of a whole stream."""

    text: str
    score: float
    """Log-probability with language model and boosting."""
    acoustic_score: float
    """Log-probability of the network alone."""


@dataclass(frozen=True)
class StreamResult:
    """What a stream is told in answer to one request."""

    segment: int
    """Counts up from 0; a segment ends with the stream."""
    text: str
    """Of the segment so far."""
    is_final: bool
    """True for the last result of the segment: its text will not change."""
    audio_processed_s: float
    """Audio of the stream that has been decoded."""
    words: tuple[Word, ...]
    """Words finished since the stream's previous result."""
    tokens: tuple[Token, ...]
    """Tokens found since the stream's previous result; with a beam, those that will not change any more."""
    alternatives: tuple[Alternative, ...] = ()
    """In the final result of a stream that asked for its n best, best first; the first has the result's text."""


class _StreamText:
    """Host side of one stream: text grows here, never on the device."""

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig):
        self._sample_rate_hz = config.features.sample_rate_hz
        self._transcript = Transcript(tokenizer, config.encoder_frame_ms)
        self.unstable: list[Token] = []
        """Tokens at the end that may still change."""

    def update(self, decoded: Decoded, covered_samples: int, is_end: bool) -> StreamResult:
        words = self._transcript.add(decoded.stable)
        alternatives = tuple(
            Alternative(self._transcript.whole_text_with(a.unstable), a.score, a.acoustic_score)
            for a in decoded.alternatives
        )
        tokens, self.unstable = decoded.stable, decoded.unstable
        if is_end:
            words += self._transcript.add(decoded.unstable) + self._transcript.finish()
            tokens, self.unstable = decoded.stable + decoded.unstable, []
        return StreamResult(
            segment=0,
            text=self._transcript.text_with(self.unstable),
            is_final=is_end,
            audio_processed_s=covered_samples / self._sample_rate_hz,
            words=tuple(words),
            tokens=tuple(tokens),
            alternatives=alternatives,
        )


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
        self.driver_name = choice.driver.name
        """What runs the searches, for the log."""
        chunk_encoder_frames = checkpoint.config.encoder.select_context(context).chunk_encoder_frames
        driving = Driving(choice.driver, min(slots, LARGEST_CAPTURED_BATCH), chunk_encoder_frames)
        self._decoding = decoding
        self._network = TransducerNetwork(checkpoint, device, kernels=decoding.kernels)
        self._tokenizer = Tokenizer(checkpoint.tokenizer_path)
        self._fusion = StreamFusion(checkpoint, self._tokenizer, decoding, slots, device)
        sizes = BeamSizes(decoding.beam_size)
        beams = BeamState(self._network, slots, sizes)
        self._lanes: dict[str, DecoderLane] = {GREEDY: GreedyLane(self._network, slots, self._fusion, driving)}
        for name in BEAM_DECODERS:
            search = BeamSearch(self._network, BeamAlgorithm(name), self._fusion.fusion)
            self._lanes[name] = BeamLane(driving.drive_beam(search, sizes), beams, self._fusion)
        self._lane_of = [GREEDY] * slots
        self._texts: list[_StreamText | None] = [None] * slots
        self._guard = SlotGuard("decoder", slots, ledger)

    @torch.inference_mode()
    def process(self, requests: list[DecoderRequest]) -> list[StreamResult | StreamError]:
        """Answers each request (all of different streams) with the stream's words so far or with an error."""
        answers: list = [self._guard.admit(request.lease, request.is_start) for request in requests]
        self._open(requests, answers)
        admitted = [i for i, answer in enumerate(answers) if answer is None]
        try:
            decoded = self._decode([requests[i] for i in admitted])
        except STEP_ERRORS as error:  # these streams' states can no longer be trusted
            for i in admitted:
                answers[i] = self._guard.refuse(requests[i].lease, f"the decoder failed: {error}")
            return answers
        for i, row in zip(admitted, decoded, strict=True):
            answers[i] = self._answer(requests[i], row)
        return answers

    def _open(self, requests: list[DecoderRequest], answers: list) -> None:
        """Sets up the streams that start; one that cannot be has its error in `answers`."""
        opened: dict[str, list[tuple[int, StreamOptions]]] = {}
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
            self._lane_of[slot] = options.decoder
            self._texts[slot] = _StreamText(self._tokenizer, self._config)
            opened.setdefault(options.decoder, []).append((slot, options))
        for name, streams in opened.items():
            slots, options = zip(*streams, strict=True)
            self._lanes[name].open(slots, options)

    def _answer(self, request: DecoderRequest, decoded: Decoded) -> StreamResult:
        slot = request.lease.slot
        result = self._texts[slot].update(decoded, request.covered_samples, request.is_end)
        if request.is_end:
            self._texts[slot] = None
            self._fusion.close(slot)
        self._guard.settle(request.lease)
        return result

    def _decode(self, requests: list[DecoderRequest]) -> list[Decoded]:
        decoded = [None] * len(requests)
        by_lane: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            name = self._lane_of[request.lease.slot]
            lane = self._lanes[name]
            if len(request.encoded) or (request.is_end and not lane.needs_frames):
                by_lane.setdefault(name, []).append(i)
            else:
                decoded[i] = self._unchanged(request.lease.slot)
        for name, rows in by_lane.items():
            for i, found in zip(rows, self._lanes[name].decode(self._chunk([requests[i] for i in rows])), strict=True):
                decoded[i] = found
        return decoded

    def _unchanged(self, slot: int) -> Decoded:
        """What a stream has that brought no frames."""
        return Decoded([], self._texts[slot].unstable, [])

    def _chunk(self, requests: list[DecoderRequest]) -> Chunk:
        device = self._network.device
        lengths = torch.tensor([len(r.encoded) for r in requests], device=device)
        encoded = torch.nn.utils.rnn.pad_sequence([r.encoded.to(device) for r in requests], batch_first=True)
        return Chunk(
            slots=[r.lease.slot for r in requests],
            frame_rows=self._network.project_encoder(encoded),
            lengths=lengths,
            is_end=[r.is_end for r in requests],
        )
