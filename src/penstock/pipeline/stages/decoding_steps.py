"""The steps in which rows of encoder frames are decoded: one each, or one for each chunk of a stream with endpointing.

The rows' steps run side by side. All state is in arrays, and only tokens take Python per row. Independent of searches.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.endpointing.rules import EndpointRules
from penstock.endpointing.segment_frames import SegmentFrames
from penstock.model.config import ModelConfig
from penstock.pipeline.results.decoded import NOTHING, Decoded
from penstock.pipeline.results.words import Token


class Step(NamedTuple):
    """The next frames of some of the rows; arrays are [n]."""

    rows: np.ndarray
    """int64, ascending."""
    first_frames: np.ndarray
    """int64, within each row."""
    frames: np.ndarray
    """int64; may be 0 where a segment ends."""
    is_final: np.ndarray
    """bool: the segment ends with these frames."""
    is_endpoint: np.ndarray
    """bool: and the stream goes on in a new segment, without a new start of the encoder."""


class SegmentPart(NamedTuple):
    """The results of a row within one segment."""

    decoded: Decoded
    covered_samples: int
    """Samples of the stream decoded so far."""
    is_final: bool
    next_start_samples: int
    """Start of the next segment in the stream, after a final part."""


class Endpoints:
    """The current segments of streams with endpointing, by slot."""

    def __init__(self, slots: int, config: ModelConfig, chunk_encoder_frames: int, marks: frozenset[int] = frozenset()):
        """marks: labels of punctuation, which come late and so are no sign of speech."""
        self._default_chunk_frames = chunk_encoder_frames
        self.chunk_frames = np.full(slots, chunk_encoder_frames, np.int64)
        """[S], encoder frames after which endpoints are evaluated."""
        self.end_tokens = frozenset(config.end_tokens)
        """Labels that are no words but mean an end."""
        self.silent_tokens = self.end_tokens | marks
        self._frame_samples = config.encoder_frame_samples
        # Frames of a chunk's last hop that its audio does not fill: see `MelChunks.covered_samples`.
        virtual_mel_frames = 0 if config.encoder.is_offline else config.encoder.subsampling_factor - 1
        self._virtual_samples = virtual_mel_frames * config.features.hop_samples
        self._segments = SegmentFrames(slots, config.encoder_frame_ms)
        self._first_sample = np.zeros(slots, np.int64)
        self._encoder_frames = np.zeros(slots, np.int64)
        """Since the encoder has started anew, at `_first_sample`."""
        self._warm_up_frames = np.zeros(slots, np.int64)
        """Encoder frames of the stream whose results are withheld; 0 after a new start of the encoder."""

    @property
    def are_on(self) -> np.ndarray:
        """[S] bool, whether the slot's stream has endpointing."""
        return self._segments.are_on

    def open(self, slot: int, rules: EndpointRules, chunk_frames: int | None = None) -> None:
        """A stream begins; chunk_frames: its own, by default those of all."""
        self.chunk_frames[slot] = self._default_chunk_frames if chunk_frames is None else chunk_frames
        self._segments.open(slot, rules)
        self._first_sample[slot] = self._encoder_frames[slot] = 0
        self._warm_up_frames[slot] = rules.warm_up_chunks * self.chunk_frames[slot]

    def restart(self, slots: np.ndarray, covered_samples: np.ndarray) -> None:
        """The encoder starts anew in `slots` [n], after these samples [n] of their streams."""
        self._first_sample[slots], self._encoder_frames[slots] = covered_samples, 0
        self._warm_up_frames[slots] = 0
        self._segments.begin(slots)

    def add_chunk(
        self, slots: np.ndarray, stable_end: np.ndarray, unstable_end: np.ndarray, has_end_token: np.ndarray
    ) -> np.ndarray:
        """Adds a whole chunk of each slot [n]; returns where a segment ends with it, [n] bool. The others as in
        `SegmentFrames.add`.
        """
        self._encoder_frames[slots] += self.chunk_frames[slots]
        ends = self._segments.add(slots, self.chunk_frames[slots], stable_end, unstable_end, has_end_token)
        return ends | (self._encoder_frames[slots] == self._warm_up_frames[slots])

    def warm_up_samples(self, slot: int) -> int:
        """Results of a part that covers no more samples of the stream than these are withheld."""
        return int(self._warm_up_frames[slot] * self._frame_samples) - self._virtual_samples

    def end(self, slot: int, decoded: Decoded, covered_samples: int) -> SegmentPart:
        """The part before an endpoint after the last chunk; the next segment begins."""
        self._segments.begin(np.array([slot]))
        start = int(self._first_sample[slot] + self._encoder_frames[slot] * self._frame_samples)
        return SegmentPart(decoded, min(start - self._virtual_samples, covered_samples), True, start)


class RowSteps:
    """The steps of R rows of different streams, and what they have decoded.

    Whole chunks are evaluated for endpoints also where a segment ends with the row, so that endpoints do not depend on
    the requests' sizes.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        slots: np.ndarray,
        frames: np.ndarray,
        covered_samples: np.ndarray,
        ends_segment: np.ndarray,
        unstable: Mapping[int, list[Token]],
    ):
        """slots, frames, covered_samples: [R] int64; ends_segment: [R] bool; unstable: by row, tokens at the end of its
        segment that may change.
        """
        self._endpoints, self._slots, self._covered = endpoints, slots, covered_samples
        self._has_rules, self._chunk_frames = endpoints.are_on[slots], endpoints.chunk_frames[slots]
        self._at, self._left = np.zeros(len(slots), np.int64), frames.copy()
        # Steps without frames that are left, too: the end of a segment at an endpoint, and with the row.
        self._is_endpoint, self._is_final = np.zeros(len(slots), bool), ends_segment.copy()
        # Of the segment so far: whether a step has run, and by row its tokens.
        self._is_new = np.zeros(len(slots), bool)
        self._found = {row: Decoded([], tokens, []) for row, tokens in unstable.items()}
        self._parts: dict[int, list[SegmentPart]] = {}

    def next(self) -> Step | None:
        """The next step of all rows that have one left."""
        rows = ((self._left > 0) | self._is_endpoint | self._is_final).nonzero()[0]
        if not len(rows):
            return None
        left, is_endpoint, has_rules = self._left[rows], self._is_endpoint[rows], self._has_rules[rows]
        frames = np.where(has_rules, np.minimum(left, self._chunk_frames[rows]), left)
        frames[is_endpoint] = 0
        is_final = is_endpoint | (self._is_final[rows] & (~has_rules | (left == 0)))
        return Step(rows, self._at[rows], frames, is_final, is_endpoint)

    def take(self, step: Step, decoded: Sequence[Decoded | None]) -> None:
        """Takes what a step decoded: of each of its rows, or None where its search did not run."""
        rows = step.rows
        self._at[rows] += step.frames
        self._left[rows] -= step.frames
        self._is_new[rows] = True
        # 1) tokens
        ends, end_tokens = np.zeros((3, len(rows)), np.int64), self._endpoints.end_tokens
        silent = self._endpoints.silent_tokens
        for i, (row, one) in enumerate(zip(rows.tolist(), decoded, strict=True)):
            if one is not None and (one is not NOTHING or row in self._found):
                has_end_token = bool(end_tokens) and any(token.id in end_tokens for token in one.stable + one.unstable)
                ends[:, i] = _end(one.stable, silent), _end(one.unstable, silent), has_end_token
                self._found[row] = _joined(self._found.get(row, NOTHING), one)
        # 2) segments that end
        final = step.is_final.nonzero()[0]
        for i in final.tolist():
            row = int(rows[i])
            row_decoded, covered = self._found.pop(row, NOTHING), int(self._covered[row])
            if step.is_endpoint[i]:
                part = self._endpoints.end(int(self._slots[row]), row_decoded, covered)
            else:
                part = SegmentPart(row_decoded, covered, True, covered)
            self._parts.setdefault(row, []).append(part)
        if len(final):
            self._is_new[rows[final]] = False
            self._is_endpoint[rows[step.is_endpoint]] = False
            self._is_final[rows[step.is_final & ~step.is_endpoint]] = False
        # 3) endpoints after whole chunks
        is_whole = self._has_rules[rows] & ~step.is_final & (step.frames == self._chunk_frames[rows])
        if np.count_nonzero(is_whole):
            whole = rows[is_whole]
            stable_end, unstable_end, has_end_token = ends[:, is_whole]
            self._is_endpoint[whole] = self._endpoints.add_chunk(
                self._slots[whole], stable_end, unstable_end, has_end_token > 0
            )

    def parts(self) -> dict[int, list[SegmentPart]]:
        """By row with new results, the parts of segments in order; to be called after the last step.

        The last part is not final where the row goes on after a segment's end, or ends within a segment.
        """
        for row in {*self._found, *self._parts}:
            if self._is_new[row]:
                covered = int(self._covered[row])
                part = SegmentPart(self._found.get(row, NOTHING), covered, False, covered)
                self._parts.setdefault(row, []).append(part)
        return self._parts


def _joined(before: Decoded, after: Decoded) -> Decoded:
    """The results of two steps of one segment; the alternatives follow all stable tokens."""
    return Decoded(before.stable + after.stable, after.unstable, after.alternatives, after.lattice)


def _end(tokens: list[Token], silent: frozenset[int]) -> int:
    """End of the last token that is not in `silent`, in encoder frames from the segment's start; 0 without one."""
    last = next((token for token in reversed(tokens) if token.id not in silent), None)
    return 0 if last is None else last.timestamp + max(last.duration, 1)
