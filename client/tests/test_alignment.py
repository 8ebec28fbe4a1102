import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_client.alignment import ChunkAligner, ChunkGeometry, join_samples, read_geometry

GEOMETRY = ChunkGeometry(first_chunk_samples=7, chunk_samples=10)


def borders(samples: int) -> int:
    """The end of the last whole chunk, counted chunk by chunk."""
    ends = [0, *range(7, samples + 1, 10)]
    return ends[-1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 25), max_size=8), min_size=1, max_size=4))
def test_whole_chunks_leave_with_the_samples_that_complete_them(segments):
    aligner, before = ChunkAligner(GEOMETRY), 0
    for sizes in segments:
        audio = np.arange(sum(sizes), dtype=np.float32)
        sent, pushed = [], 0
        for size in sizes:
            part = aligner.add(audio[pushed : pushed + size])
            pushed += size
            sent += [] if part is None else [part]
            assert part is None or len(part)
            assert before + sum(map(len, sent)) == max(before, borders(before + pushed))
            assert sum(map(len, sent)) == pushed - aligner.held_samples
        sent.append(aligner.flush(np.empty(0, np.float32)))
        assert np.array_equal(np.concatenate(sent), audio)
        assert aligner.held_samples == 0
        before += pushed


def test_without_a_geometry_nothing_is_held():
    aligner = ChunkAligner()
    for size in (3, 1):
        assert len(aligner.add(np.zeros(size, np.float32))) == size
    assert aligner.add(np.zeros(0, np.float32)) is None


def test_a_stream_goes_on_with_the_chunks_of_another_server():
    aligner = ChunkAligner(GEOMETRY)
    assert len(aligner.add(np.zeros(9, np.float32))) == 7
    aligner.geometry = ChunkGeometry(4, 4)
    assert len(aligner.add(np.zeros(4, np.float32))) == 5  # 12 of 13 samples
    aligner.geometry = None
    assert len(aligner.add(np.zeros(1, np.float32))) == 2


def test_joined_samples_are_int16_only_where_all_are():
    pcm, floats = np.array([16384], np.int16), np.array([0.25], np.float32)
    none = np.empty(0, np.int16)
    assert join_samples([pcm, none, pcm]).dtype == np.int16
    assert join_samples([pcm, floats, none]).tolist() == [0.5, 0.25]
    assert join_samples([none, floats]).dtype == np.float32
    assert join_samples([none, none]).shape == (0,)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"first_chunk_samples": "7880", "chunk_samples": "8960", "more": ""}, ChunkGeometry(7880, 8960)),
        ({"chunk_samples": "8960"}, None),
        ({"first_chunk_samples": "7880", "chunk_samples": "0"}, None),
        ({"first_chunk_samples": "soon", "chunk_samples": "8960"}, None),
    ],
)
def test_parameters_of_a_server(parameters, expected):
    assert read_geometry(parameters) == expected
