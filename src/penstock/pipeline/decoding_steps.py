"""The steps in which a request's encoder frames are decoded: one, or with endpointing one for each chunk.

Independent of searches; `DecoderStage` runs the steps of a batch side by side.
"""

from collections.abc import Generator
from typing import NamedTuple

import torch

from penstock.endpointing.rules import EndpointRules, SegmentFrames
from penstock.model.config import ModelConfig
from penstock.pipeline.stream_decoders import Decoded
from penstock.pipeline.words import Token


class Step(NamedTuple):
    """Frames of one request for its stream decoder."""

    encoded: torch.Tensor
    """[T, D], T may be 0 in a final step."""
    is_final: bool
    """True if the segment ends with these frames."""
    unstable: list[Token]
    """Tokens that may change, before this step."""
    is_endpoint: bool = False
    """True if the best hypothesis then goes on in a new segment."""


class SegmentPart(NamedTuple):
    """What a request decoded of one segment."""

    decoded: Decoded | None
    """None where nothing was decoded."""
    covered_samples: int
    """Samples of the stream decoded so far."""
    is_final: bool
    next_start_samples: int
    """Where the next segment begins in the stream, behind a final part."""


Steps = Generator[Step, Decoded, list[SegmentPart]]
"""Yields steps, receives what each decoded, and returns the parts of a request in order: at least one."""


class StreamEndpoints:
    """The endpoints of one stream: its rules, and where its current segment is."""

    def __init__(self, rules: EndpointRules, config: ModelConfig, chunk_encoder_frames: int):
        self._chunk_encoder_frames = chunk_encoder_frames
        self._frame_samples = config.encoder_frame_samples
        # Frames of a chunk's last hop that its audio does not fill: see `MelChunks.covered_samples`.
        self._virtual_samples = (config.encoder.subsampling_factor - 1) * config.features.hop_samples
        self._segment = SegmentFrames(rules, config.encoder_frame_ms)
        self._first_sample = self._encoder_frames = 0

    def restart(self, covered_samples: int) -> None:
        """The encoder starts anew, behind these samples of the stream."""
        self._first_sample, self._encoder_frames = covered_samples, 0
        self._segment.begin()

    def steps(self, encoded: torch.Tensor, covered_samples: int, is_final: bool, unstable: list[Token]) -> Steps:
        """The steps of a request: chunks, then the end of the segment if it `is_final`.

        Whole chunks are evaluated also in a final request, so that endpoints do not depend on the requests' sizes.
        """
        parts: list[SegmentPart] = []
        found = Decoded([], unstable, [])
        is_new = False
        for chunk in encoded.split(self._chunk_encoder_frames) if len(encoded) else ():
            found, is_new = _joined(found, (yield Step(chunk, False, found.unstable))), True
            if len(chunk) < self._chunk_encoder_frames or not self._is_endpoint(found):
                continue
            found = _joined(found, (yield Step(chunk[:0], True, found.unstable, is_endpoint=True)))
            start = self._first_sample + self._encoder_frames * self._frame_samples
            parts.append(SegmentPart(found, min(start - self._virtual_samples, covered_samples), True, start))
            found, is_new = Decoded([], [], []), False
            self._segment.begin()
        if is_final:
            found, is_new = _joined(found, (yield Step(encoded[:0], True, found.unstable))), True
        if is_new or not parts:
            parts.append(SegmentPart(found if is_new else None, covered_samples, is_final, covered_samples))
        return parts

    def _is_endpoint(self, found: Decoded) -> bool:
        self._encoder_frames += self._chunk_encoder_frames
        return self._segment.add(self._chunk_encoder_frames, _end(found.stable), _end(found.unstable))


def _joined(before: Decoded, after: Decoded) -> Decoded:
    """What two steps of one segment decoded; the alternatives follow all stable tokens."""
    return Decoded(before.stable + after.stable, after.unstable, after.alternatives, after.lattice)


def _end(tokens: list[Token]) -> int:
    """Where the last token ends, in encoder frames from the segment's start; 0 without one."""
    return tokens[-1].timestamp + max(tokens[-1].duration, 1) if tokens else 0
