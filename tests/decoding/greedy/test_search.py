"""Label-looping equals frame-by-frame search, in any chunks, any batch and with any window."""

import random

import pytest
import torch

from penstock.decoding.greedy.memory import fresh_states
from penstock.decoding.greedy.search import LabelLooping
from penstock.decoding.transducer.interface import Prediction, PredictorState, TransducerNetwork
from penstock.decoding.transducer.networks import open_network
from penstock.model.bundle import Checkpoint
from tests.helpers.decoding import (
    HEADS,
    PAIRS,
    assert_same_labels,
    decode_by_reference,
    decode_in_chunks,
    decode_whole,
    labels_of,
    random_streams,
)
from tests.helpers.golden import SIGNALS, golden_cases
from tests.helpers.random_models import head, random_checkpoint
from tests.helpers.reference.greedy import Label

LENGTHS = (24, 1, 11, 0, 16)
OFTEN_BLANK, RARELY_BLANK = 0.7, 0.05


def make(tmp_path, seed: int, durations=(), blank_rate=OFTEN_BLANK) -> tuple[Checkpoint, TransducerNetwork]:
    checkpoint = random_checkpoint(tmp_path, seed, blank_rate=blank_rate, **head(durations))
    return checkpoint, open_network(checkpoint)


def reaches_max_symbols(labels: list[Label], max_symbols: int) -> bool:
    """True if some frame holds max_symbols labels."""
    frames = [label.timestamp for label in labels]
    return any(frames.count(frame) == max_symbols for frame in frames)


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("case", golden_cases(), ids=lambda case: case.name)
def test_golden_labels(golden_bundle, case, signal):
    network = open_network(golden_bundle(case.name))
    search = LabelLooping(network)
    for context in case.contexts:
        golden = case.greedy(context, signal)
        durations = golden.durations or [0] * len(golden.tokens)
        expected = list(map(Label, golden.tokens, golden.timestamps, durations, golden.log_probabilities))
        assert_same_labels(decode_whole(network, search, [case.encoded(context, signal)]), [expected])


@pytest.mark.parametrize("case", golden_cases(), ids=lambda case: case.name)
def test_the_reference_is_nemo(golden_bundle, case):
    context = case.contexts[-1]
    golden = [case.greedy(context, signal) for signal in SIGNALS]
    encoded = [case.encoded(context, signal) for signal in SIGNALS]
    found = decode_by_reference(golden_bundle(case.name), encoded)
    assert [[label.id for label in row] for row in found] == [g.tokens for g in golden]
    assert [[label.timestamp for label in row] for row in found] == [g.timestamps for g in golden]


@pytest.mark.parametrize(("seed", "durations"), list(enumerate(HEADS)), ids=str)
def test_random_networks_in_random_chunks_and_batches(tmp_path, seed, durations):
    blank_rate = (OFTEN_BLANK, RARELY_BLANK)[seed % 2]
    checkpoint, network = make(tmp_path, seed, durations, blank_rate)
    streams = random_streams(seed, LENGTHS)
    max_symbols = 10 if blank_rate == OFTEN_BLANK else 4
    expected = decode_by_reference(checkpoint, streams, max_symbols)
    assert sum(map(len, expected)) > 3
    search = LabelLooping(network, max_symbols)
    assert_same_labels(decode_whole(network, search, streams), expected)
    for max_frames in (1, 6):
        assert_same_labels(decode_in_chunks(network, search, streams, random.Random(seed), max_frames), expected)


@pytest.mark.parametrize("max_symbols", [1, 2, 5])
@pytest.mark.parametrize("durations", [(), (0, 2, 4), *PAIRS])
def test_time_advances_after_max_symbols(tmp_path, durations, max_symbols):
    checkpoint, network = make(tmp_path, 3, durations, RARELY_BLANK)
    streams = random_streams(1, (25, 8))
    expected = decode_by_reference(checkpoint, streams, max_symbols)
    assert reaches_max_symbols(expected[0], max_symbols)
    search = LabelLooping(network, max_symbols)
    assert_same_labels(decode_whole(network, search, streams), expected)
    assert_same_labels(decode_in_chunks(network, search, streams, random.Random(0)), expected)


@pytest.mark.parametrize("window", [1, 3, 100])
@pytest.mark.parametrize("durations", [(), (0, 9), PAIRS[1]])
def test_the_window_does_not_matter(tmp_path, durations, window):
    checkpoint, network = make(tmp_path, 6, durations, blank_rate=0.9)
    streams = random_streams(2, (60, 31))
    search = LabelLooping(network, window_encoder_frames=window)
    expected = decode_by_reference(checkpoint, streams)
    assert_same_labels(decode_whole(network, search, streams), expected)
    assert_same_labels(decode_in_chunks(network, search, streams, random.Random(1), max_frames=20), expected)


@pytest.mark.parametrize("durations", [(), (0, 1, 2, 3, 4), (0, 9), *PAIRS], ids=str)
def test_streams_that_are_through_with_a_chunk_are_left_out(tmp_path, monkeypatch, durations):
    checkpoint, network = make(tmp_path, 1, durations)
    chance = random.Random(4)
    streams = random_streams(4, tuple(chance.randint(0, 14) for _ in range(24)))
    predict, sizes = network.predict, []

    def recorded(labels: torch.Tensor, state: PredictorState) -> Prediction:
        sizes.append(len(labels))
        return predict(labels, state)

    expected = decode_by_reference(checkpoint, streams)
    monkeypatch.setattr(network, "predict", recorded)
    search = LabelLooping(network)
    assert_same_labels(decode_whole(network, search, streams), expected)
    assert sizes[1:] == sorted(sizes[1:], reverse=True) and sizes[-1] <= 16  # the first is the start's
    assert_same_labels(decode_in_chunks(network, search, streams, chance, 6), expected)


def test_a_jump_may_be_longer_than_the_chunks_after_it(tmp_path):
    checkpoint, network = make(tmp_path, 1, (0, 9), blank_rate=0.3)
    (stream,) = random_streams(4, (64,))
    (expected,) = decode_by_reference(checkpoint, [stream])
    assert any(label.duration == 9 for label in expected)
    search, states, found, waited = LabelLooping(network), fresh_states(network, 1), [], 0
    for start in range(0, 64, 2):
        waited += int(states.next_frame) > start + 2  # this chunk is jumped over as a whole
        frames = network.project_encoder(stream[None, start : start + 2])
        hyps, states = search.decode(frames, torch.tensor([2]), states)
        found += labels_of(hyps, 0)
    assert waited > 3
    assert_same_labels([found], [expected])


def test_a_stream_without_frames_keeps_its_state(tmp_path):
    _, network = make(tmp_path, 5, (0, 1, 2))
    search = LabelLooping(network)
    first, second = (network.project_encoder(stream[None]) for stream in random_streams(5, (7, 7)))
    _, before = search.decode(torch.cat([first, second]), torch.tensor([7, 3]), fresh_states(network, 2))
    hyps, after = search.decode(torch.cat([second, first]), torch.tensor([0, 5]), before)
    assert hyps.lengths[0] == 0
    for old, new in zip(before, after, strict=True):
        pairs = zip(old, new, strict=True) if isinstance(old, tuple) else [(old, new)]
        assert all(torch.equal(a[0], b[0]) for a, b in pairs)
    assert after.frames_seen.tolist() == [7, 8]


def test_the_given_state_is_not_modified(tmp_path):
    """A caller may decode again from the same states."""
    _, network = make(tmp_path, 5, (0, 2), RARELY_BLANK)
    search, states = LabelLooping(network), fresh_states(network, 1)
    frames, lengths = network.project_encoder(random_streams(6, (9,))[0][None]), torch.tensor([9])
    first, second = (labels_of(search.decode(frames, lengths, states)[0], 0) for _ in range(2))
    assert len(first) > 3
    assert first == second
