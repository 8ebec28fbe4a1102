"""Faults, a little of each: what they do to the stream concerned, and that nobody else notices.

scripts/fault_trials.py does the same things hundreds and thousands of times (docs/faults.md).
"""

import signal
from collections.abc import Iterator

import pytest

from tests.server import trials_of_input as of_input
from tests.server import trials_of_members as of_members
from tests.server import trials_of_streams as of_streams
from tests.server.conftest import RunningServer, running_server
from tests.server.resources import wait_until_free
from tests.server.voices import Voice, make_voices, touch

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def voices(bundled_model) -> list[Voice]:
    return make_voices(bundled_model)


def carry_out(trial, server: RunningServer, voices: list[Voice], count: int) -> None:
    trial(server, voices, count)
    wait_until_free(server, lambda: touch(server), timeout_s=server.idle_s + 10)


@pytest.mark.parametrize(
    ("trial", "count"),
    [
        (of_streams.killed_clients, 4),
        (of_streams.never_ended, 1),
        (of_streams.too_many, 1),
        (of_streams.never_reading, 300),
    ],
)
def test_streams_that_nobody_ends(small_server: RunningServer, voices, trial, count):
    carry_out(trial, small_server, voices, count)


@pytest.mark.parametrize(
    ("trial", "count"),
    [
        (of_streams.started_twice, 2),
        (of_streams.two_on_one_id, 2),
        (of_streams.after_the_end, 2),
        (of_streams.cut_networks, 2),
        (of_streams.short_streams, 30),
        (of_input.random_bytes, 12),
    ],
)
def test_clients_that_do_not_keep_to_the_rules(server: RunningServer, voices, trial, count):
    carry_out(trial, server, voices, count)


@pytest.fixture(scope="module")
def roomy_server(bundled_model) -> Iterator[RunningServer]:
    """More slots than the hostile requests have names."""
    yield from running_server(bundled_model, max_streams=24, idle_s=4.0)


@pytest.mark.parametrize("trial", [of_input.hostile_grpc, of_input.hostile_http])
def test_requests_that_make_no_sense(roomy_server: RunningServer, voices, trial):
    carry_out(trial, roomy_server, voices, 250)


def test_a_server_that_is_stopped_under_load(bundled_model, voices):
    figures = of_members.stopped_under_load(bundled_model, voices)
    assert figures["last_told_s"] < 10


@pytest.mark.parametrize(("member", "number"), [("encoder", signal.SIGKILL)])
def test_a_member_that_is_lost(bundled_model, voices, member, number):
    of_members.lost_member(bundled_model, voices, member, number, starts_again=False)
