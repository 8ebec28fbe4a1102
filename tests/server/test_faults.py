"""Small fault trials: their effect on the streams concerned. trials/fault_trials.py runs them at full size."""

import signal

import pytest

from trials.faults import server
from trials.server.recordings import Recording, make_recordings

pytestmark = [pytest.mark.server, pytest.mark.nightly]


@pytest.fixture(scope="module")
def recordings(bundled_model) -> list[Recording]:
    return make_recordings(bundled_model)


def test_a_server_that_is_stopped_under_load(bundled_model, recordings):
    server.stopped_under_load(bundled_model, recordings, starts_again=False)


def test_a_lost_stage(bundled_model, recordings):
    server.lost_stage(bundled_model, recordings, "encoder", signal.SIGKILL, starts_again=False)
