"""AES++ equals the reference search, never lags, and takes no more steps than it needs."""

import pytest
import torch

from penstock.decoding.beam.search import BeamAlgorithm, BeamSearch
from penstock.decoding.sizes import AesLimits, BeamSizes
from tests.helpers.beam import Found, assert_same_beam, from_reference, make, reference, search_whole, start
from tests.helpers.decoding import HEADS, random_streams
from tests.helpers.reference.beam import AesParameters

LENGTHS = (10, 1, 6, 0)


def aes(network, *limits: float) -> BeamSearch:
    return BeamSearch(network, BeamAlgorithm.AES, aes_limits=AesLimits(*limits))


@pytest.mark.parametrize(("seed", "durations"), list(enumerate(HEADS)), ids=str)
def test_it_is_the_reference_search(tmp_path, seed, durations):
    limits = ((2, 2.3, 2), (1, 9.0, 0), (4, 5.0, 1))[seed % 3]
    checkpoint, network = make(tmp_path, seed, durations)
    streams = random_streams(seed, LENGTHS)
    for beam_size in (1, 3):
        plain = reference(checkpoint, beam_size, aes=AesParameters(*limits))
        found = search_whole(network, aes(network, *limits), streams, BeamSizes(beam_size))
        for stream, beam in zip(streams, found, strict=True):
            assert_same_beam(beam, from_reference(plain.aes_search(stream)))


def test_it_never_lags(tmp_path):
    """Hypotheses that jumped ahead do not change meanwhile, so no hypothesis is behind the frames seen."""
    _, network = make(tmp_path, 3, (0, 2, 4))
    search = aes(network)
    states = start(network, 1, BeamSizes(6, carried_encoder_frames=0))
    for stream in random_streams(9, (1,) * 20):
        frames = network.project_encoder(stream[None])
        update, states = search.decode(frames, torch.tensor([1]), torch.tensor([False]), states)
        assert update.lag_encoder_frames.tolist() == [0]
    assert states.hypotheses.lengths.max() > 3


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_batch_takes_no_more_steps_than_its_slowest_stream(tmp_path, monkeypatch, beam_size):
    """One hypothesis takes a step for each frame and one for each label; a batch takes those of its slowest stream."""
    _, network = make(tmp_path, 5, blank_rate=0.9)
    steps, score = [], network.score
    monkeypatch.setattr(network, "score", lambda *states: steps.append(None) or score(*states))
    streams = random_streams(5, (30, 20))

    def searched(*chosen: torch.Tensor) -> tuple[int, list[list[Found]]]:
        steps.clear()
        found = search_whole(network, aes(network), list(chosen), BeamSizes(beam_size))
        return len(steps), found

    alone = []
    for stream in streams:
        taken, ((best, *_),) = searched(stream)
        alone.append(taken)
        if beam_size == 1:
            assert taken == len(stream) + len(best.labels)
        assert taken < 3 * len(stream)  # a step for each label of a frame, and one for its blank
    assert searched(*streams)[0] == max(alone)
