"""Faults, a little of each: what they do to the stream concerned, and that nobody else notices.

scripts/fault_trials.py does the same things hundreds and thousands of times (docs/faults.md).
"""

import signal
from collections.abc import Iterator

import pytest

from penstock.patience import patience_library
from tests.server import trials_of_input as of_input
from tests.server import trials_of_members as of_members
from tests.server import trials_of_networks as of_networks
from tests.server import trials_of_streams as of_streams
from tests.server.conftest import RunningServer, running_server
from tests.server.resources import run_trial
from tests.server.voices import Voice, make_voices

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def voices(bundled_model) -> list[Voice]:
    return make_voices(bundled_model)


@pytest.mark.parametrize(
    ("trial", "count"),
    [
        (of_streams.killed_clients, 4),
        (of_streams.too_many, 1),
        (of_streams.never_reading, 300),
        (of_networks.silent_networks, 1),
        (of_networks.cut_requests, 3),
    ],
)
def test_streams_that_nobody_ends(small_server: RunningServer, voices, trial, count):
    run_trial(trial, small_server, voices, count)


@pytest.mark.parametrize(
    ("trial", "count"),
    [
        (of_streams.started_twice, 2),
        (of_streams.two_on_one_id, 2),
        (of_streams.after_the_end, 2),
        (of_networks.cut_networks, 2),
        (of_streams.short_streams, 30),
        (of_input.random_bytes, 12),
    ],
)
def test_clients_that_do_not_keep_to_the_rules(server: RunningServer, voices, trial, count):
    run_trial(trial, server, voices, count)


@pytest.fixture(scope="module")
def roomy_server(bundled_model) -> Iterator[RunningServer]:
    """More slots than the hostile requests have names, and than `small_server` has for a neighbour."""
    yield from running_server(bundled_model, max_streams=24, idle_s=3.0)


@pytest.mark.parametrize("trial", [of_input.hostile_grpc, of_input.hostile_http])
def test_requests_that_make_no_sense(roomy_server: RunningServer, voices, trial):
    run_trial(trial, roomy_server, voices, 250)


def test_streams_that_live_as_long_as_their_pauses_are_short(roomy_server: RunningServer, voices):
    run_trial(of_streams.never_ended, roomy_server, voices, 1)


def test_a_server_that_is_stopped_under_load(bundled_model, voices):
    of_members.stopped_under_load(bundled_model, voices)


def test_a_machine_that_is_held_up(bundled_model, voices):
    if patience_library() is None:
        pytest.skip("needs a C compiler")
    of_members.held_up(bundled_model, voices, times=3, pause_s=1.4)


@pytest.mark.parametrize(("member", "number"), [("encoder", signal.SIGKILL)])
def test_a_member_that_is_lost(bundled_model, voices, member, number):
    of_members.lost_member(bundled_model, voices, member, number, starts_again=False)
