"""Ends of a stream's chunks, in samples: clients align their requests to them."""

from pathlib import Path

import numpy as np
import pytest

from penstock.frontend.chunk_geometry import ChunkGeometry, chunk_geometry
from penstock.frontend.log_mel import SampleState
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext

CONTEXTS = [(70, 1), (70, 0)]


SLOT = np.array([0])


def append(state: SampleState, samples: int) -> list:
    """The windows that silence completes."""
    return state.append(SLOT, np.zeros(samples, np.float32), np.array([samples]), np.array([0]))


def completed_at(state: SampleState, chunks: int) -> list[int]:
    """The number of the segment's sample that completed each chunk, audio being appended sample by sample."""
    found, samples = [], 0
    while len(found) < chunks:
        samples += 1
        found += [samples] * len(append(state, 1))
    return found


@pytest.mark.parametrize("context", CONTEXTS)
def test_the_first_chunk_and_each_further_one_end_at_the_published_samples(bundled_model: Path, context):
    geometry = chunk_geometry(Checkpoint(bundled_model).config, AttentionContext(*context))
    first, step = geometry.first_chunk_samples, geometry.chunk_samples
    assert step == 1280 * (context[1] + 1)
    state = SampleState(geometry, 1)
    state.reset(SLOT)
    assert completed_at(state, 3) == [first, first + step, first + 2 * step]
    append(state, 17)
    state.reset(SLOT)
    assert completed_at(state, 2) == [first, first + step]


def test_a_shape_of_other_front_ends():
    geometry = ChunkGeometry(chunk_mel_frames=4, virtual_mel_frames=3, hop_samples=100, frame_samples=200)
    state = SampleState(geometry, 1)
    state.reset(SLOT)
    assert completed_at(state, 2) == [geometry.first_chunk_samples, geometry.first_chunk_samples + 400]
