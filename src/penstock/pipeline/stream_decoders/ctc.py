"""The stream decoder of greedy CTC search."""

from collections.abc import Sequence

import torch

from penstock.decoding.ctc import CtcHead, CtcStateStore, CtcTokens, decode_greedily
from penstock.decoding.tensors.tensor_tree import copy_to_device, tree_to_host
from penstock.pipeline.options.stream_options import ResolvedOptions
from penstock.pipeline.results.decoded import NOTHING, Decoded
from penstock.pipeline.results.words import Token
from penstock.pipeline.stream_decoders.base import Chunk, StreamDecoder, keep_states
from penstock.pipeline.stream_decoders.transducer import rows_of_tokens


class CtcStreamDecoder(StreamDecoder):
    """Greedy search over the CTC head's log-probabilities."""

    needs_frames = True

    def __init__(self, head: CtcHead, slots: int):
        self._head = head
        self._state = CtcStateStore(head, slots)

    def open(self, slots: Sequence[int], options: Sequence[ResolvedOptions]) -> None:
        """Resets to streams without frames."""
        self._state.reset(copy_to_device(slots, torch.int64, self._head.device))

    def begin_segment(self, slots: Sequence[int], options: Sequence[ResolvedOptions]) -> None:
        """An open token, which was reported, goes on but is not reported again."""
        self._state.begin_segment(copy_to_device(slots, torch.int64, self._head.device))

    def decode(self, chunk: Chunk) -> list[Decoded]:
        """Tokens that ended are stable; one that the next frame may repeat is not."""
        slots = copy_to_device(chunk.slots, torch.int64, self._head.device)
        log_probs = self._head.log_probs(chunk.encoded, chunk.prompts)
        update, states = decode_greedily(log_probs, chunk.lengths, self._state.gather(slots))
        keep_states(chunk, self._state, slots, states)
        host = update if update.open.labels.device.type == "cpu" else tree_to_host(update)
        rows = zip(_tokens(host.closed), _tokens(host.open), strict=True)
        return [Decoded(*row, []) if any(row) else NOTHING for row in rows]


def _tokens(tokens: CtcTokens) -> list[list[Token]]:
    *fields, lengths = tokens
    return [[one for one in row if one.timestamp >= 0] for row in rows_of_tokens(tuple(fields), lengths.tolist())]
