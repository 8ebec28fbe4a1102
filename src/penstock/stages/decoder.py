"""Third stage: encoder frames in, words out."""

from dataclasses import dataclass

import torch

from penstock.checkpoint import Checkpoint
from penstock.config import ModelConfig
from penstock.decoding.batched_hyps import BatchedHyps
from penstock.decoding.greedy_state import GreedyState
from penstock.decoding.label_looping import LabelLooping
from penstock.decoding.networks import TransducerNetwork
from penstock.errors import StreamError
from penstock.slot_ledger import SlotLedger
from penstock.stages.slot_guard import STEP_ERRORS, SlotGuard
from penstock.streams import Lease
from penstock.tokenizer import Tokenizer
from penstock.transcript import Token, Transcript, Word


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
    """Tokens found since the stream's previous result."""


class _StreamText:
    """Host side of one stream: text grows here, never on the device."""

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig):
        self._sample_rate_hz = config.features.sample_rate_hz
        self._transcript = Transcript(tokenizer, config.encoder_frame_ms)

    def update(self, tokens: list[Token], covered_samples: int, is_end: bool) -> StreamResult:
        words = self._transcript.add(tokens)
        if is_end:
            words += self._transcript.finish()
        return StreamResult(
            segment=0,
            text=self._transcript.text,
            is_final=is_end,
            audio_processed_s=covered_samples / self._sample_rate_hz,
            words=tuple(words),
            tokens=tuple(tokens),
        )


class DecoderStage:
    """Greedy decoding of a batch of streams from their saved states."""

    def __init__(self, checkpoint: Checkpoint, slots: int, ledger: SlotLedger, device: str = "cpu"):
        self._config = checkpoint.config
        self._network = TransducerNetwork(checkpoint, device)
        self._search = LabelLooping(self._network)
        self._tokenizer = Tokenizer(checkpoint.tokenizer_path)
        self._state = GreedyState(self._network, slots)
        self._texts: list[_StreamText | None] = [None] * slots
        self._guard = SlotGuard("decoder", slots, ledger)

    @torch.inference_mode()
    def process(self, requests: list[DecoderRequest]) -> list[StreamResult | StreamError]:
        """Answers each request (all of different streams) with the stream's words so far or with an error."""
        answers: list = [self._guard.admit(request.lease, request.is_start) for request in requests]
        admitted = [i for i, answer in enumerate(answers) if answer is None]
        self._open([requests[i].lease.slot for i in admitted if requests[i].is_start])
        try:
            tokens = self._decode([requests[i] for i in admitted])
        except STEP_ERRORS as error:  # these streams' states can no longer be trusted
            for i in admitted:
                answers[i] = self._guard.refuse(requests[i].lease, f"the decoder failed: {error}")
            return answers
        for i, row in zip(admitted, tokens, strict=True):
            answers[i] = self._answer(requests[i], row)
        return answers

    def _open(self, slots: list[int]) -> None:
        if slots:
            self._state.reset(torch.tensor(slots, device=self._network.device))
        for slot in slots:
            self._texts[slot] = _StreamText(self._tokenizer, self._config)

    def _answer(self, request: DecoderRequest, tokens: list[Token]) -> StreamResult:
        slot = request.lease.slot
        result = self._texts[slot].update(tokens, request.covered_samples, request.is_end)
        if request.is_end:
            self._texts[slot] = None
        self._guard.settle(request.lease)
        return result

    def _decode(self, requests: list[DecoderRequest]) -> list[list[Token]]:
        tokens: list[list[Token]] = [[] for _ in requests]
        rows = [i for i, r in enumerate(requests) if len(r.encoded)]
        if not rows:
            return tokens
        device = self._network.device
        slots = torch.tensor([requests[i].lease.slot for i in rows], device=device)
        lengths = torch.tensor([len(requests[i].encoded) for i in rows], device=device)
        encoded = torch.nn.utils.rnn.pad_sequence([requests[i].encoded.to(device) for i in rows], batch_first=True)
        frame_rows = self._network.project_encoder(encoded)
        hyps, state = self._search.decode(frame_rows, lengths, self._state.gather(slots))
        self._state.scatter(slots, state)
        for i, row in zip(rows, _tokens(hyps), strict=True):
            tokens[i] = row
        return tokens


def _tokens(hyps: BatchedHyps) -> list[list[Token]]:
    host = hyps.to_host()
    lengths = host.lengths.tolist()
    longest = max(lengths)
    columns = [column[:, :longest].tolist() for column in (host.labels, host.timestamps, host.durations, host.scores)]
    return [
        [Token(*values) for values in zip(*(column[row][:count] for column in columns), strict=True)]
        for row, count in enumerate(lengths)
    ]
