"""The computed memory of a stream is what the states take."""

import pytest

from penstock.decoding.beam.memory import BeamStateStore
from penstock.decoding.ctc import CtcHead, CtcStateStore
from penstock.decoding.greedy.memory import GreedyStateStore
from penstock.decoding.sizes import BeamSizes
from penstock.decoding.transducer.networks import open_network
from penstock.encoder.state import EncoderState
from penstock.model.config import FACTORIZED
from penstock.pipeline.memory.server_memory import bytes_per_stream
from penstock.pipeline.options.decoding_config import DecodingConfig
from tests.helpers.random_models import random_checkpoint


@pytest.mark.parametrize("seed", [1, 2])
def test_bytes_per_stream_of_a_factorized_transducer(tmp_path, seed):
    """A row is as wide as the joint and the vocabulary together, and has two weights per stream."""
    checkpoint = random_checkpoint(tmp_path, seed, kind=FACTORIZED)
    network, config = open_network(checkpoint), checkpoint.config
    encoder = EncoderState(config.encoder, config.encoder.contexts[0], 3, "cpu", network.dtype)
    states = (encoder, GreedyStateStore(network, 3), BeamStateStore(network, 3, BeamSizes(3)))
    computed = bytes_per_stream(config, config.encoder.contexts[0], DecodingConfig(beam_size=3))
    assert computed == sum(state.bytes_per_slot for state in states)


@pytest.mark.parametrize("case", ["rnnt_hybrid", "tdt_hybrid"])
def test_bytes_per_stream_is_what_the_states_take(golden_bundle, case):
    checkpoint = golden_bundle(case)
    config = checkpoint.config
    network = open_network(checkpoint)
    for context in config.encoder.contexts:
        encoder = EncoderState(config.encoder, context, 3, "cpu", network.dtype)
        beams = BeamStateStore(network, 3, BeamSizes(3))
        head, ctc_beams = CtcHead(checkpoint), BeamStateStore(CtcHead(checkpoint), 3, BeamSizes(3, 0))
        states = (encoder, GreedyStateStore(network, 3), beams, CtcStateStore(head, 3), ctc_beams)
        computed = bytes_per_stream(config, context, DecodingConfig(beam_size=3))
        assert computed == sum(state.bytes_per_slot for state in states)
