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


@pytest.mark.parametrize("case", ["rnnt_hybrid", "tdt_hybrid", FACTORIZED])
def test_bytes_per_stream_is_what_the_states_take(golden_bundle, tmp_path, case):
    """A row of a factorized transducer is as wide as joint and vocabulary together, with two weights per stream."""
    is_factorized = case == FACTORIZED
    checkpoint = random_checkpoint(tmp_path, 1, kind=FACTORIZED) if is_factorized else golden_bundle(case)
    config, network = checkpoint.config, open_network(checkpoint)
    for context in config.encoder.contexts:
        encoder = EncoderState(config.encoder, context, 3, "cpu", network.dtype)
        states = [encoder, GreedyStateStore(network, 3), BeamStateStore(network, 3, BeamSizes(3))]
        if not is_factorized:
            head = CtcHead(checkpoint)
            states += [CtcStateStore(head, 3), BeamStateStore(head, 3, BeamSizes(3, 0))]
        computed = bytes_per_stream(config, context, DecodingConfig(beam_size=3))
        assert computed == sum(state.bytes_per_slot for state in states)
