"""Small fault trials: their effect on the stream concerned, and that no other stream notices.

scripts/fault_trials.py runs them at full size (docs/faults.md).
"""

import signal
from collections.abc import Iterator

import pytest

from tests.helpers.server.recordings import Recording, make_recordings
from tests.helpers.server.resources import run_trial
from tests.helpers.server.running import RunningServer, running_server
from tests.nightly import trials_batched, trials_gateway, trials_input, trials_networks, trials_server, trials_streams

pytestmark = [pytest.mark.server, pytest.mark.timing, pytest.mark.nightly]


@pytest.fixture(scope="module")
def recordings(bundled_model) -> list[Recording]:
    return make_recordings(bundled_model)


@pytest.fixture(scope="module")
def roomy_server(bundled_model) -> Iterator[RunningServer]:
    """More slots than the hostile requests have names."""
    yield from running_server(bundled_model, max_streams=24, idle_s=3.0)


@pytest.mark.parametrize(
    ("trial", "count"),
    [
        (trials_streams.too_many, 1),
        (trials_networks.unread_replies, 150),
        (trials_networks.stalled_networks, 1),
        (trials_networks.cut_requests, 3),
    ],
)
def test_streams_without_an_end(small_server: RunningServer, recordings, trial, count):
    run_trial(trial, small_server, recordings, count)


@pytest.mark.parametrize(
    ("trial", "count"),
    [
        (trials_streams.killed_clients, 4),
        (trials_batched.killed_batched_clients, 1),
        (trials_batched.lost_requests, 2),
        (trials_batched.hostile_rows, 40),
        (trials_streams.started_twice, 2),
        (trials_streams.two_on_one_id, 2),
        (trials_streams.after_the_end, 2),
        (trials_networks.cut_networks, 2),
        (trials_streams.short_streams, 30),
        (trials_input.random_bytes, 12),
        (trials_gateway.killed_gateway_clients, 10),
    ],
)
def test_broken_clients(roomy_server: RunningServer, recordings, trial, count):
    run_trial(trial, roomy_server, recordings, count)


@pytest.mark.parametrize(
    "trial",
    [
        trials_input.hostile_grpc,
        trials_input.hostile_http,
        trials_gateway.hostile_gateway_grpc,
        trials_gateway.hostile_gateway_http,
    ],
)
def test_hostile_requests(roomy_server: RunningServer, recordings, trial):
    run_trial(trial, roomy_server, recordings, 250)


def test_the_idle_timeout(roomy_server: RunningServer, recordings):
    run_trial(trials_streams.never_ended, roomy_server, recordings, 1)


def test_a_server_that_is_stopped_under_load(bundled_model, recordings):
    trials_server.stopped_under_load(bundled_model, recordings, starts_again=False)


@pytest.mark.parametrize(("name", "number"), [("encoder", signal.SIGKILL)])
def test_a_lost_stage(bundled_model, recordings, name, number):
    trials_server.lost_stage(bundled_model, recordings, name, number, starts_again=False)
