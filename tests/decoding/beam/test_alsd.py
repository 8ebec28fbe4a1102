"""ALSD++ equals the reference search, in any chunks, any batch and with any beam size."""

import random

import pytest

from penstock.decoding.beam.search import BeamSearch
from penstock.decoding.sizes import BeamSizes
from tests.helpers.beam import assert_same_beam, from_reference, make, reference, search_in_chunks, search_whole, start
from tests.helpers.decoding import HEADS, random_streams

LENGTHS = (14, 1, 7, 0)


@pytest.mark.parametrize(("seed", "durations"), list(enumerate(HEADS)), ids=str)
def test_it_is_the_reference_search(tmp_path, seed, durations):
    beam_size = (2, 7)[seed % 2]
    checkpoint, network = make(tmp_path, seed, durations)
    streams = random_streams(seed, LENGTHS)
    plain = reference(checkpoint, beam_size)
    found = search_whole(network, BeamSearch(network), streams, BeamSizes(beam_size))
    for stream, beam in zip(streams, found, strict=True):
        assert_same_beam(beam, from_reference(plain.alsd(stream)))


@pytest.mark.parametrize(("seed", "durations"), list(enumerate(HEADS)), ids=str)
def test_random_chunks_are_the_whole(tmp_path, seed, durations):
    _, network = make(tmp_path, seed, durations)
    streams = random_streams(seed, (30, 3, 17, 0))
    search, sizes = BeamSearch(network), BeamSizes(4)
    whole = search_whole(network, search, streams, sizes)
    for max_frames in (1, 4):
        states = start(network, len(streams), sizes)
        chunked = search_in_chunks(network, search, streams, states, random.Random(seed), max_frames)
        assert chunked.states.forced_blanks.sum() == chunked.states.pruned_hypotheses.sum() == 0
        for found, expected in zip(chunked.n_best, whole, strict=True):
            assert_same_beam(found, expected)
