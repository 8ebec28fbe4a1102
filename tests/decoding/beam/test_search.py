"""Both beam searches: batch, chunks, padding and slots do not matter, beam 1 is greedy search; ALSD++'s reference."""

import random

import pytest
import torch

from penstock.decoding.beam.memory import BeamStateStore
from penstock.decoding.beam.search import BeamAlgorithm, BeamSearch
from penstock.decoding.sizes import AesLimits, BeamSizes
from penstock.decoding.tensors.tensor_tree import leaves, map_tensors
from tests.helpers.beam import (
    LABEL_SCORE_ERROR,
    Choices,
    assert_same_beam,
    from_reference,
    make,
    reference,
    search_in_chunks,
    search_whole,
    start,
)
from tests.helpers.decoding import HEADS, PAIRS, decode_by_reference, random_streams

LENGTHS = (22, 9, 0, 15)
SIZES = BeamSizes(4)
both_searches = pytest.mark.parametrize("algorithm", BeamAlgorithm)
with_each_head = pytest.mark.parametrize(
    ("seed", "durations"),
    [pytest.param(n, HEADS[n], marks=[pytest.mark.nightly] * (n not in (0, 2, 5, 9))) for n in range(len(HEADS))],
    ids=str,
)
tdt_or_factorized = pytest.mark.parametrize("durations", [(0, 1, 2), *PAIRS], ids=str)
RARELY_BLANK = 0.05


@with_each_head
def test_alsd_is_the_reference_search(tmp_path, seed, durations):
    beam_size = (2, 7)[seed % 2]
    checkpoint, network = make(tmp_path, seed, durations)
    streams = random_streams(seed, (14, 1, 7, 0))
    plain = reference(checkpoint, beam_size)
    found = search_whole(network, BeamSearch(network), streams, BeamSizes(beam_size))
    for stream, beam in zip(streams, found, strict=True):
        assert_same_beam(beam, from_reference(plain.alsd(stream)))


@both_searches
@with_each_head
def test_random_chunks_are_the_whole(tmp_path, seed, durations, algorithm):
    _, network = make(tmp_path, seed, durations)
    streams = random_streams(seed, (18, 3, 11, 0))
    search = BeamSearch(network, algorithm)
    sizes = BeamSizes(4, carried_encoder_frames=0) if algorithm is BeamAlgorithm.AES else SIZES
    whole = search_whole(network, search, streams, sizes)
    for max_frames in (1, 4):
        states = start(network, len(streams), sizes)
        chunked = search_in_chunks(network, search, streams, states, random.Random(seed), max_frames)
        assert chunked.states.forced_blanks.sum() == chunked.states.pruned_hypotheses.sum() == 0
        for found, expected in zip(chunked.n_best, whole, strict=True):
            assert_same_beam(found, expected)


@tdt_or_factorized
@both_searches
def test_mixed_beam_sizes_in_a_batch_are_each_alone(tmp_path, algorithm, durations):
    _, network = make(tmp_path, 3, durations)
    streams, wanted = random_streams(1, (18, 12, 20, 15)), [1, 8, 3, 2]
    search = BeamSearch(network, algorithm)
    together = search_whole(network, search, streams, BeamSizes(8), Choices(wanted))
    for stream, beam_size, found in zip(streams, wanted, together, strict=True):
        (alone,) = search_whole(network, search, [stream], BeamSizes(beam_size))
        assert len(found) <= beam_size
        assert_same_beam(found, alone)


@with_each_head
def test_beam_1_is_greedy_search(tmp_path, seed, durations):
    blank_rate = (0.7, RARELY_BLANK)[seed % 2]
    checkpoint, network = make(tmp_path, seed, durations, blank_rate)
    streams = random_streams(seed, (40, 5))
    max_symbols = 10 if blank_rate == 0.7 else 3
    found = search_whole(network, BeamSearch(network, max_symbols=max_symbols), streams, BeamSizes(1))
    expected = decode_by_reference(checkpoint, streams, max_symbols)
    assert sum(map(len, expected)) > 2
    assert [[label[:3] for label in beam[0].labels] for beam in found] == [
        [label[:3] for label in row] for row in expected
    ]
    for beam, row in zip(found, expected, strict=True):
        scores = ([label.score for label in labels] for labels in (beam[0].labels, row))
        torch.testing.assert_close(*map(torch.tensor, scores), atol=LABEL_SCORE_ERROR, rtol=0)


@tdt_or_factorized
@both_searches
def test_a_stream_without_frames_keeps_its_state(tmp_path, algorithm, durations):
    _, network = make(tmp_path, 5, durations)
    search = BeamSearch(network, algorithm)
    first, second = (network.project_encoder(stream[None]) for stream in random_streams(5, (7, 7)))
    no_end = torch.tensor([False, False])
    states = start(network, 2, SIZES)
    _, before = search.decode(torch.cat([first, second]), torch.tensor([7, 3]), no_end, states)
    update, after = search.decode(torch.cat([second * torch.nan, first]), torch.tensor([0, 5]), no_end, before)
    assert update.stable.lengths[0] == 0
    for old, new in zip(leaves(before), leaves(after), strict=True):
        assert torch.equal(old[0], new[0])
    assert after.frames_seen.tolist() == [7, 8]


@both_searches
def test_the_given_state_is_not_modified(tmp_path, algorithm):
    _, network = make(tmp_path, 5, (0, 2))
    search, states = BeamSearch(network, algorithm), start(network, 1, SIZES)
    kept = map_tensors(torch.clone, states)
    frames = network.project_encoder(random_streams(6, (9,))[0][None])
    search.decode(frames, torch.tensor([9]), torch.tensor([False]), states)
    for old, new in zip(leaves(kept), leaves(states), strict=True):
        assert torch.equal(old, new)


@pytest.mark.parametrize("durations", [(0, 1, 3), *PAIRS], ids=str)
@both_searches
def test_streams_in_reused_slots(tmp_path, algorithm, durations):
    _, network = make(tmp_path, 6, durations)
    search, state = BeamSearch(network, algorithm), BeamStateStore(network, 5, SIZES)
    dirty, streams = random_streams(7, (20, 20)), random_streams(8, (12, 17))
    slots = torch.tensor([3, 1])
    state.scatter(slots, search_in_chunks(network, search, dirty, state.gather(slots), random.Random(0)).states)
    state.reset(slots)
    found = search_in_chunks(network, search, streams, state.gather(slots), random.Random(1))
    for beam, expected in zip(found.n_best, search_whole(network, search, streams, SIZES), strict=True):
        assert_same_beam(beam, expected)


@tdt_or_factorized
def test_stable_labels_never_change(tmp_path, durations):
    """Reported stable labels are a prefix of all that is reported later, and of every hypothesis at the end."""
    _, network = make(tmp_path, 2, durations)
    streams = random_streams(9, (50, 40))
    chunked = search_in_chunks(network, BeamSearch(network), streams, start(network, 2, SIZES), random.Random(2))
    for beam, partials, counts in zip(chunked.n_best, chunked.partial, chunked.stable, strict=True):
        finals = [one.labels for one in beam]
        assert counts[len(counts) // 2] > 3
        for partial, count in zip(partials, counts, strict=True):
            assert all(final[:count] == partial[:count] for final in finals)
        assert [label[:3] for label in partials[-1]] == [label[:3] for label in beam[0].labels]


def test_hypotheses_lag(tmp_path):
    """Between chunks some hypotheses lag, so frames must be carried, and none is lost."""
    _, network = make(tmp_path, 1, (0, 1, 2, 3, 4))
    states, lags = start(network, 1, BeamSizes(8)), []
    search = BeamSearch(network)
    for stream in random_streams(10, (1,) * 40):
        frames = network.project_encoder(stream[None])
        update, states = search.decode(frames, torch.tensor([1]), torch.tensor([False]), states)
        lags.append(int(update.lag_encoder_frames))
    assert max(lags) > 1
    assert states.forced_blanks.tolist() == [0]
    update, states = search.decode(frames[:, :0], torch.tensor([0]), torch.tensor([True]), states)
    assert update.lag_encoder_frames.tolist() == [0]


@pytest.mark.parametrize("carried", [0, 1, 3])
def test_hypotheses_too_far_behind_get_forced_blanks(tmp_path, carried):
    _, network = make(tmp_path, 1, (0, 1, 2, 3, 4))
    (stream,) = random_streams(10, (40,))
    search, sizes = BeamSearch(network), BeamSizes(8, carried_encoder_frames=carried)
    chunked = search_in_chunks(network, search, [stream], start(network, 1, sizes), random.Random(3), max_frames=1)
    assert chunked.states.forced_blanks[0] > 0
    assert len(chunked.n_best[0]) > 1
    frames = [label.timestamp for label in chunked.n_best[0][0].labels]
    assert frames == sorted(frames)
    assert all(0 <= frame < 40 for frame in frames)


def test_unstable_suffixes_that_grow_too_long_are_cut(tmp_path):
    """The best hypothesis's oldest labels become stable, and hypotheses that differ there are pruned."""
    _, network = make(tmp_path, 2, blank_rate=0.3)
    (stream,) = random_streams(11, (40,))
    search, sizes = BeamSearch(network), BeamSizes(8, unstable_labels=2)
    chunked = search_in_chunks(network, search, [stream], start(network, 1, sizes), random.Random(3))
    assert chunked.states.pruned_hypotheses[0] > 0
    assert chunked.states.unstable.lengths.max() <= 2
    assert len(chunked.n_best[0][0].labels) > 10


@both_searches
def test_max_symbols_forces_blanks(tmp_path, algorithm):
    _, network = make(tmp_path, 3, blank_rate=RARELY_BLANK)
    (stream,) = random_streams(1, (12,))
    (found,) = search_whole(
        network, BeamSearch(network, algorithm, max_symbols=2, aes_limits=AesLimits(2)), [stream], SIZES
    )
    for one in found:
        frames = [label.timestamp for label in one.labels]
        assert max(frames.count(frame) for frame in frames) == 2


def test_ranking_by_the_score_alone(tmp_path):
    _, network = make(tmp_path, 2)
    streams = random_streams(2, (22, 15))
    for is_normalized in (True, False):
        search = BeamSearch(network, is_normalized=is_normalized)
        for beam in search_whole(network, search, streams, BeamSizes(8)):
            ranks = [one.score / (len(one.labels) + 1 if is_normalized else 1) for one in beam]
            assert ranks == sorted(ranks, reverse=True)
            assert len({tuple(label.id for label in one.labels) for one in beam}) == len(beam)


@pytest.mark.parametrize("sizes", [BeamSizes(0), BeamSizes(33), BeamSizes(4, -1), BeamSizes(4, 8, 0)])
def test_unsupported_sizes(tmp_path, sizes):
    _, network = make(tmp_path, 2)
    with pytest.raises(ValueError, match=r"minimum|not supported"):
        BeamStateStore(network, 1, sizes)
