"""The steps in which rows of encoder frames are decoded: one each, or one for each chunk of a stream with endpointing.

The rows' steps run side by side. All state is in arrays, and only tokens take Python per row. Independent of searches.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from penstock.endpointing.rules import EndpointRules, SegmentFrames
from penstock.model.config import ModelConfig
from penstock.pipeline.results.words import NOTHING, Decoded, Token


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
    """bool: and the search goes on in a new segment."""
    is_copy: np.ndarray
    """bool: the client ends the segment. The search goes on without these frames, which come again with others."""


class SegmentPart(NamedTuple):
    """The results of a row within one segment."""

    decoded: Decoded
    covered_samples: int
    """Samples of the stream decoded so far."""
    is_final: bool
    next_start_samples: int
    """Start of the next segment in the stream, after a final part."""

    @property
    def is_finite(self) -> bool:
        """False if the last score is NaN: after encoder frames that are not finite all are."""
        return all(token.score < math.inf for token in (self.decoded.unstable or self.decoded.stable)[-1:])


class Endpoints:
    """The current segments of streams with endpointing, by slot."""

    def __init__(
        self,
        slots: int,
        config: ModelConfig,
        chunk_encoder_frames: int,
        marks: frozenset[int] = frozenset(),
    ):
        """marks: labels of punctuation, which come late and so are no sign of speech."""
        self._default_chunk_frames = chunk_encoder_frames
        self.chunk_frames = np.full(slots, chunk_encoder_frames, np.int64)
        """[S], encoder frames after which endpoints are evaluated."""
        self.end_tokens = frozenset(config.end_tokens)
        """Labels that are no words but mean an end."""
        self.silent_tokens = self.end_tokens | marks
        self._frame_samples = config.encoder_frame_samples
        # Frames of a chunk's last hop that its audio does not fill: see `ChunkRows.covered_samples`.
        virtual_mel_frames = 0 if config.encoder.is_offline else config.encoder.subsampling_factor - 1
        self._virtual_samples = virtual_mel_frames * config.features.hop_samples
        self._segments = SegmentFrames(slots, config.encoder_frame_ms)
        self._first_sample = np.zeros(slots, np.int64)
        """[S], sample at which the search began."""
        self._origin = np.zeros(slots, np.int64)
        self._encoder_frames = np.zeros(slots, np.int64)
        """Since the encoder has started anew, at sample `_origin`."""
        self._warm_up_frames = np.zeros(slots, np.int64)
        """Encoder frames of the stream whose results are withheld."""
        self._found, self._reported, self._reported_before = np.zeros((3, slots), np.int64)
        """Counts since the search began: stable tokens, those reported with copies, and those of earlier segments."""

    @property
    def are_on(self) -> np.ndarray:
        """[S] bool, whether the slot's stream has endpointing."""
        return self._segments.are_on

    def open(self, slot: int, rules: EndpointRules, chunk_frames: int | None = None) -> None:
        """A stream begins; chunk_frames: its own, by default those of all."""
        self.chunk_frames[slot] = self._default_chunk_frames if chunk_frames is None else chunk_frames
        self._segments.open(slot, rules)
        self._origin[slot] = self._first_sample[slot] = self._encoder_frames[slot] = 0
        self._warm_up_frames[slot] = rules.warm_up_chunks * self.chunk_frames[slot]
        self._found[slot] = self._reported[slot] = self._reported_before[slot] = 0

    def change(self, slot: int, rules: EndpointRules) -> None:
        """The stream goes on with other rules."""
        self._segments.change(slot, rules)

    def restart(self, slots: np.ndarray, covered_samples: np.ndarray) -> None:
        """The encoder and the search start anew in `slots` [n], after these samples [n] of their streams."""
        self._origin[slots] = self._first_sample[slots] = covered_samples
        self._encoder_frames[slots] = self._warm_up_frames[slots] = 0
        self._segments.begin(slots)

    def unreported(self, slot: int, decoded: Decoded, is_copy: bool) -> Decoded:
        """Removes from a step's result the tokens that copies reported: by number, for the hypotheses may differ.

        is_copy: the search itself does not have these tokens yet.
        """
        first, before = int(self._reported[slot] - self._found[slot]), int(self._reported_before[slot])
        # By the search itself: it will find a copy's tokens once more, with the next request.
        if not is_copy:
            self._found[slot] += len(decoded.stable)
        if first <= 0 and not before:
            return decoded
        first, at = max(first, 0), max(first - len(decoded.stable), 0)
        alternatives = [a._replace(tokens=a.tokens[before if a.is_whole else at :]) for a in decoded.alternatives]
        new = replace(decoded, stable=decoded.stable[first:], unstable=decoded.unstable[at:], alternatives=alternatives)
        return new if new != NOTHING else NOTHING

    def add_chunk(
        self, slots: np.ndarray, stable_end: np.ndarray, unstable_end: np.ndarray, has_end_token: np.ndarray
    ) -> np.ndarray:
        """Adds a whole chunk of each slot [n]; returns where a segment ends with it, [n] bool. The others as in
        `SegmentFrames.add`.
        """
        self._encoder_frames[slots] += self.chunk_frames[slots]
        ends = self._segments.add(slots, self.chunk_frames[slots], stable_end, unstable_end, has_end_token)
        return ends | (self._encoder_frames[slots] == self._warm_up_frames[slots])

    def count(self, slots: np.ndarray, frames: np.ndarray) -> None:
        """Adds frames [n] of streams without rules, which may get some."""
        self._encoder_frames[slots] += frames
        self._segments.frames[slots] += frames

    def warm_up_samples(self, slot: int) -> int:
        """Results of a part that covers no more samples of the stream than these are withheld."""
        return int(self._warm_up_frames[slot] * self._frame_samples) - self._virtual_samples

    def end(self, slot: int, decoded: Decoded, covered_samples: int) -> SegmentPart:
        """The part before an endpoint after the last chunk; the next segment begins."""
        self._segments.begin(np.array([slot]))
        self._found[slot] = self._reported[slot] = self._reported_before[slot] = 0
        self._first_sample[slot] = start = int(self._origin[slot] + self._encoder_frames[slot] * self._frame_samples)
        return SegmentPart(decoded, min(start - self._virtual_samples, covered_samples), True, start)

    def force_end(self, slot: int, decoded: Decoded, tokens: int, covered_samples: int) -> SegmentPart:
        """The part before an end by the client; the search itself does not have its last `tokens` tokens yet.

        The times of the next segment count from where the search began, too.
        """
        self._reported[slot] = max(self._reported[slot], self._found[slot]) + tokens
        self._reported_before[slot] = self._reported[slot]
        self._segments.force(np.array([slot]))
        return SegmentPart(decoded, covered_samples, True, int(self._first_sample[slot]))


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
        ends: np.ndarray,
        is_forced: np.ndarray,
        unstable: Mapping[int, list[Token]],
    ):
        """slots, covered_samples: [R] int64; frames: [2, R] int64, all of a row and its open ones; ends, is_forced: [R]
        bool, the stream or, by the client, its segment ends; unstable: by row, the tokens at its end that may change.
        """
        self._endpoints, self._slots, self._covered = endpoints, slots, covered_samples
        self._has_rules, self._chunk_frames = endpoints.are_on[slots], endpoints.chunk_frames[slots]
        self._at, self._left, self._open_frames = np.zeros(len(slots), np.int64), frames[0] - frames[1], frames[1]
        # Steps without frames that are left, too: the end of a segment at an endpoint, and with the row.
        self._is_endpoint, self._is_final = np.zeros(len(slots), bool), ends | is_forced
        self._is_forced = is_forced
        # Whether a step of the segment has run, and by row its tokens so far.
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
        # The frames that are left belong to the new segment, in which the search begins after this step.
        frames[is_endpoint] = 0
        # After all whole frames and their endpoints: then only the open ones are left.
        is_copy = self._is_forced[rows] & (left == 0) & ~is_endpoint
        frames = np.where(is_copy, self._open_frames[rows], frames)
        ends_here = self._is_final[rows] & ~self._is_forced[rows] & (~has_rules | (left == 0))
        return Step(rows, self._at[rows], frames, is_endpoint | ends_here | is_copy, is_endpoint, is_copy)

    def add(self, step: Step, decoded: Sequence[Decoded | None]) -> None:
        """Adds what a step decoded: a result for each of its rows, or None where its search did not run."""
        rows = step.rows
        self._at[rows] += step.frames
        # A copy decodes open frames, which are not among those left: they come again.
        self._left[rows] -= np.where(step.is_copy, 0, step.frames)
        self._is_new[rows] = True
        # 1) tokens
        ends, end_tokens = np.zeros((3, len(rows)), np.int64), self._endpoints.end_tokens
        silent = self._endpoints.silent_tokens
        copied = [0] * len(rows)
        for i, (row, one) in enumerate(zip(rows.tolist(), decoded, strict=True)):
            if one is not None:
                one = self._endpoints.unreported(int(self._slots[row]), one, bool(step.is_copy[i]))
                copied[i] = len(one.stable)
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
            elif step.is_copy[i]:
                tokens = copied[i] + len(row_decoded.unstable)
                part = self._endpoints.force_end(int(self._slots[row]), row_decoded, tokens, covered)
            else:
                part = SegmentPart(row_decoded, covered, True, covered)
            self._parts.setdefault(row, []).append(part)
        if len(final):
            self._is_new[rows[final]] = False
            self._is_endpoint[rows[step.is_endpoint]] = False
            self._is_final[rows[step.is_final & ~step.is_endpoint]] = False
        # 3) endpoints after whole chunks
        is_plain = ~self._has_rules[rows] & ~step.is_copy
        self._endpoints.count(self._slots[rows[is_plain]], step.frames[is_plain])
        # A shorter chunk ends the row's segment, or goes on with the next request.
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
