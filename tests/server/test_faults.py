"""Small fault trials: their effect on the stream concerned, and that no other stream notices.

trials/fault_trials.py runs them at full size (docs/reliability.md).
"""

import signal
from collections.abc import Iterator

import pytest

from trials.faults import batched, gateway, hostile_input, networks, server, streams
from trials.server.recordings import Recording, make_recordings
from trials.server.resources import run_trial
from trials.server.running import RunningServer, running_server

pytestmark = [pytest.mark.server, pytest.mark.nightly]


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
        (streams.too_many, 1),
        (networks.unread_replies, 150),
        (networks.stalled_networks, 1),
        (networks.cut_requests, 3),
    ],
)
def test_streams_without_an_end(small_server: RunningServer, recordings, trial, count):
    run_trial(trial, small_server, recordings, count)


@pytest.mark.parametrize(
    ("trial", "count"),
    [
        (streams.killed_clients, 4),
        (batched.killed_batched_clients, 1),
        (batched.lost_requests, 2),
        (batched.hostile_rows, 40),
        (streams.started_twice, 2),
        (streams.two_on_one_id, 2),
        (streams.after_the_end, 2),
        (networks.cut_networks, 2),
        (streams.short_streams, 30),
        (hostile_input.random_bytes, 12),
        (gateway.killed_gateway_clients, 10),
    ],
)
def test_broken_clients(roomy_server: RunningServer, recordings, trial, count):
    run_trial(trial, roomy_server, recordings, count)


@pytest.mark.parametrize(
    "trial",
    [
        hostile_input.hostile_grpc,
        hostile_input.hostile_http,
        gateway.hostile_gateway_grpc,
        gateway.hostile_gateway_http,
    ],
)
def test_hostile_requests(roomy_server: RunningServer, recordings, trial):
    run_trial(trial, roomy_server, recordings, 250)


def test_the_idle_timeout(roomy_server: RunningServer, recordings):
    run_trial(streams.never_ended, roomy_server, recordings, 1)


def test_a_server_that_is_stopped_under_load(bundled_model, recordings):
    server.stopped_under_load(bundled_model, recordings, starts_again=False)


@pytest.mark.parametrize(("name", "number"), [("encoder", signal.SIGKILL)])
def test_a_lost_stage(bundled_model, recordings, name, number):
    server.lost_stage(bundled_model, recordings, name, number, starts_again=False)
