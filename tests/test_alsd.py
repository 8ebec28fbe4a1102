"""ALSD++ finds what the plain search finds, in any chunks, company and beam."""

import random

import pytest

from penstock.decoding.beam_search import BeamSearch
from penstock.decoding.beam_sizes import BeamSizes
from tests.beam import assert_same_beam, from_reference, make, reference, search_in_chunks, search_whole, start
from tests.decoding import DURATIONS, random_streams

LENGTHS = (14, 1, 7, 0)


@pytest.mark.parametrize("beam_size", [1, 2, 4, 7])
@pytest.mark.parametrize(("seed", "durations"), list(enumerate(DURATIONS)), ids=str)
def test_the_plain_search(tmp_path, seed, durations, beam_size):
    checkpoint, network = make(tmp_path, seed, durations)
    streams = random_streams(seed, LENGTHS)
    plain = reference(checkpoint, beam_size)
    found = search_whole(network, BeamSearch(network), streams, BeamSizes(beam_size))
    for stream, beam in zip(streams, found, strict=True):
        assert_same_beam(beam, from_reference(plain.alsd(stream)))


@pytest.mark.parametrize("most_frames", [1, 4])
@pytest.mark.parametrize(("seed", "durations"), list(enumerate(DURATIONS)), ids=str)
def test_random_chunks_are_the_whole(tmp_path, seed, durations, most_frames):
    _, network = make(tmp_path, seed, durations)
    streams = random_streams(seed, (30, 3, 17, 0))
    search, sizes = BeamSearch(network), BeamSizes(4)
    whole = search_whole(network, search, streams, sizes)
    rows = start(network, len(streams), sizes)
    chunked = search_in_chunks(network, search, streams, rows, random.Random(seed), most_frames)
    assert chunked.rows.forced_on.sum() == chunked.rows.dropped.sum() == 0
    for found, expected in zip(chunked.n_best, whole, strict=True):
        assert_same_beam(found, expected, atol=0.0)
