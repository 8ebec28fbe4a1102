"""Frame-looping finds what the reference and label-looping find."""

import random

import pytest

from benchmarks.penstock_decoders import FrameLooping, UnprojectedNetwork
from penstock.decoding.greedy.memory import fresh_states
from penstock.decoding.greedy.search import LabelLooping
from penstock.decoding.transducer.networks import open_network
from tests.helpers.decoding import (
    DURATIONS,
    assert_same_labels,
    decode_by_reference,
    decode_in_chunks,
    decode_whole,
    random_streams,
)
from tests.helpers.random_models import random_checkpoint

LENGTHS = (24, 1, 11, 0, 16)


@pytest.mark.parametrize("blank_rate", [0.7, 0.05])
@pytest.mark.parametrize(("seed", "durations"), list(enumerate(DURATIONS)), ids=str)
def test_random_networks_in_random_chunks_and_batches(tmp_path, seed, durations, blank_rate):
    checkpoint = random_checkpoint(tmp_path, seed, durations=durations, blank_rate=blank_rate)
    network, streams = open_network(checkpoint), random_streams(seed, LENGTHS)
    max_symbols = 10 if blank_rate == 0.7 else 4
    expected = decode_by_reference(checkpoint, streams, max_symbols)
    assert sum(map(len, expected)) > 3
    search = FrameLooping(network, max_symbols)
    assert_same_labels(decode_whole(network, search, streams), expected)
    assert_same_labels(decode_in_chunks(network, search, streams, random.Random(seed)), expected)


@pytest.mark.parametrize("durations", [(), (0, 2, 4)])
@pytest.mark.parametrize("search", [FrameLooping, LabelLooping])
def test_projecting_for_each_pair_changes_nothing(tmp_path, search, durations):
    checkpoint = random_checkpoint(tmp_path, 3, durations=durations)
    network, streams = UnprojectedNetwork(checkpoint), random_streams(9, LENGTHS)
    assert network.project_encoder(streams[0][None]).shape[2] == network.frame_width == 16
    assert fresh_states(network, 1).projected_predictions.shape[1] == checkpoint.config.transducer.predictor_hidden
    expected = decode_by_reference(checkpoint, streams)
    assert_same_labels(decode_whole(network, search(network), streams), expected)
    assert_same_labels(decode_in_chunks(network, search(network), streams, random.Random(2)), expected)
