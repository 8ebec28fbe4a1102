"""The stream decoder of the search over a decoding graph."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from penstock.decoding.ctc.head import CtcHead
from penstock.decoding.host_copy import copy_to_device, tree_to_host
from penstock.decoding.tensor_tree import map_tensors
from penstock.decoding.wfst.captured_search import CapturedWfstSearch
from penstock.decoding.wfst.frame_step import StreamBoosts
from penstock.decoding.wfst.paths import BestPath
from penstock.decoding.wfst.search import WfstSearch
from penstock.decoding.wfst.start import StartChoices, StartStates
from penstock.decoding.wfst.state import WfstStateStore
from penstock.pipeline.stream_decoders import Chunk, Decoded, StreamDecoder
from penstock.pipeline.stream_fusion import StreamFusion
from penstock.pipeline.stream_options import StreamOptions
from penstock.pipeline.truncation import TruncationCounters, TruncationLog
from penstock.pipeline.words import Token


class WfstStreamDecoder(StreamDecoder):
    """Viterbi beam search over one graph for all streams, boosted by stream."""

    needs_frames = False

    def __init__(
        self,
        head: CtcHead,
        search: WfstSearch | CapturedWfstSearch,
        start: StartStates,
        state: WfstStateStore,
        fusion: StreamFusion,
    ):
        """fusion: with the boosts of the graph's words."""
        self._head, self._search, self._start, self._state, self._fusion = head, search, start, state, fusion
        slots = state.slots
        self.truncation = TruncationLog("wfst", slots)
        self._held: list[Token | None] = [None] * slots

    def open(self, slots: Sequence[int], options: Sequence[StreamOptions]) -> None:
        """Resets to the start of the graph."""
        words = self._fusion.word_boosts
        choices = [
            StartChoices(chosen.lm_weight, None if words is None else words.row(slot), self._fusion.phrase_start(slot))
            for slot, chosen in zip(slots, options, strict=True)
        ]
        self._state.scatter(torch.tensor(slots, device=self._head.device), self._start.build(choices))
        for slot in slots:
            self._held[slot] = None
        self.truncation.begin(slots)

    def decode(self, chunk: Chunk) -> list[Decoded]:
        """Pieces that all paths share are stable once the next one is, for only then is it known where they end."""
        device = self._head.device
        slots = copy_to_device(chunk.slots, torch.int64, device)
        is_final = copy_to_device(chunk.is_final, torch.bool, device)
        log_probs = self._head.log_probs(chunk.encoded).float()
        path, states = self._search.decode(
            log_probs, chunk.lengths, is_final, self._state.gather(slots), self._boosts(chunk.slots, slots)
        )
        self._state.scatter(slots, states)
        report = _Report(path, states.narrowed_frames, states.dropped_tokens)
        return self._to_decoded(chunk, report if device.type == "cpu" else report.fetched())

    def _boosts(self, slots: Sequence[int], rows: torch.Tensor) -> StreamBoosts | None:
        words, has_phrases = self._fusion.word_boosts, self._fusion.has_phrases(slots)
        if words is None or not (has_phrases or words.is_used(slots)):
            return None
        return StreamBoosts(words.table, rows, self._fusion.phrases if has_phrases else None)

    def _to_decoded(self, chunk: Chunk, report: "_Report") -> list[Decoded]:
        """Converts a report on the host to tokens, and records truncation."""
        decoded = []
        for row, (slot, is_final) in enumerate(zip(chunk.slots, chunk.is_final, strict=True)):
            counts = int(report.narrowed_frames[row]), int(report.dropped_tokens[row])
            self.truncation.add(slot, TruncationCounters(0, 0, *counts), is_final)
            stable, unstable = self._tokens(slot, report.path, row)
            decoded.append(Decoded(stable, unstable, []))
        return decoded

    def _tokens(self, slot: int, path: BestPath, row: int) -> tuple[list[Token], list[Token]]:
        """New stable tokens of a row, and those behind them; the last stable one is held until its end is known."""
        held, length, stable_nodes = self._held[slot], int(path.lengths[row]), int(path.stable[row])
        fields = path.pieces, path.frames, path.last_frames_before, path.scores
        pieces, frames, last_frames, scores = (field[row, :length].tolist() for field in fields)
        begun = [at for at in range(length) if pieces[at] >= 0]
        # A token lasts until the frame that the next one knows of, the last one until that of the path.
        ends = [*(last_frames[at] for at in begun), int(path.last_frames[row])]
        tokens = [] if held is None else [held._replace(duration=ends[0] - held.timestamp + 1)]
        for at, end in zip(begun, ends[1:], strict=True):
            tokens.append(Token(pieces[at], frames[at], end - frames[at] + 1, scores[at]))
        stable = sum(at < stable_nodes for at in begun) + (held is not None)
        if not stable:
            return [], tokens
        self._held[slot] = tokens[stable - 1]
        return tokens[: stable - 1], tokens[stable - 1 :]


class _Report(NamedTuple):
    """All that the host needs of a chunk."""

    path: BestPath
    narrowed_frames: torch.Tensor
    dropped_tokens: torch.Tensor

    def fetched(self, expected: int = 32) -> "_Report":
        """Copies to the CPU with the first nodes of each path; again where one is longer than expected."""
        width = self.path.pieces.shape[1]
        path = map_tensors(lambda t: t[:, :expected].contiguous() if t.dim() == 2 else t, self.path)
        host: _Report = tree_to_host(self._replace(path=path))
        longest = int(host.path.lengths.max())
        return host if longest <= min(expected, width) else self.fetched(longest)
