"""The audio of the stream beside the attacks, which themselves need a server (`make trials NAME=gateway-attack`)."""

import numpy as np

from trials.gateway_attack import SAMPLE_RATE_HZ, speech


def test_the_recordings_are_repeated_for_the_whole_time():
    once, samples = speech(1.0), speech(60.0)
    assert SAMPLE_RATE_HZ < len(once) < 60 * SAMPLE_RATE_HZ <= len(samples)
    np.testing.assert_array_equal(samples[len(once) : 2 * len(once)], once)
    assert once.dtype == np.float32
    assert np.abs(once).max() > 0.01
