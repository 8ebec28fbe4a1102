"""Frame-looping finds what the reference and label-looping find."""

import random

import pytest
import torch

from penstock.decoding.frame_looping import FrameLooping
from penstock.decoding.greedy_state import fresh_rows
from penstock.decoding.label_looping import LabelLooping
from penstock.decoding.networks import TransducerNetwork, UnprojectedNetwork
from penstock.decoding.rows import leaves
from tests.decoding import (
    DURATIONS,
    assert_same_labels,
    decode_by_reference,
    decode_in_chunks,
    decode_whole,
    random_streams,
)
from tests.random_models import random_checkpoint

LENGTHS = (24, 1, 11, 0, 16)


@pytest.mark.parametrize("blank_rate", [0.7, 0.05])
@pytest.mark.parametrize(("seed", "durations"), list(enumerate(DURATIONS)), ids=str)
def test_random_networks_in_random_chunks_and_company(tmp_path, seed, durations, blank_rate):
    checkpoint = random_checkpoint(tmp_path, seed, durations=durations, blank_rate=blank_rate)
    network, streams = TransducerNetwork(checkpoint), random_streams(seed, LENGTHS)
    max_symbols = 10 if blank_rate == 0.7 else 4
    expected = decode_by_reference(checkpoint, streams, max_symbols)
    assert sum(map(len, expected)) > 3
    search = FrameLooping(network, max_symbols)
    assert_same_labels(decode_whole(network, search, streams), expected)
    assert_same_labels(decode_in_chunks(network, search, streams, random.Random(seed)), expected)


@pytest.mark.parametrize("durations", [(), (0, 9), (0, 1, 2)])
def test_the_state_is_that_of_label_looping(tmp_path, durations):
    network = TransducerNetwork(random_checkpoint(tmp_path, 2, durations=durations))
    streams = random_streams(8, (13, 13))
    after = []
    for search in (FrameLooping(network), LabelLooping(network)):
        rows, chance = fresh_rows(network, 2), random.Random(3)
        for start in range(0, 13, 4):
            frames = network.project_encoder(torch.stack([stream[start : start + 4] for stream in streams]))
            lengths = frames.new_full((2,), frames.shape[1]).long()
            lengths[chance.randint(0, 1)] = 0
            _, rows = search.decode(frames, lengths, rows)
        after.append(leaves(rows))
    for one, other in zip(*after, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("durations", [(), (0, 2, 4)])
@pytest.mark.parametrize("search", [FrameLooping, LabelLooping])
def test_projecting_every_time_changes_nothing(tmp_path, search, durations):
    checkpoint = random_checkpoint(tmp_path, 3, durations=durations)
    network, streams = UnprojectedNetwork(checkpoint), random_streams(9, LENGTHS)
    assert network.project_encoder(streams[0][None]).shape[2] == network.frame_width == 16
    assert fresh_rows(network, 1).predictor_rows.shape[1] == checkpoint.config.transducer.predictor_hidden
    expected = decode_by_reference(checkpoint, streams)
    assert_same_labels(decode_whole(network, search(network), streams), expected)
    assert_same_labels(decode_in_chunks(network, search(network), streams, random.Random(2)), expected)
