import math

import pytest

from loadtest.verdicts import LONGEST_P99_LAG_MS, GeneratorVerdict, find_exhausted, judge_generator
from tests.loadtest.made_up import machine, member

ON_TIME = GeneratorVerdict(False, "on time")
EASY = {"features": member(), "encoder": member(), "decoder": member(), "asr": member(queue_ms=1000.0)}


def resources(use, members=EASY, generator=ON_TIME, refusals=0, threads=1) -> list[str]:
    return [found.resource for found in find_exhausted(generator, use, members, refusals, threads)]


@pytest.mark.parametrize(
    ("lag_ms", "use", "is_bottleneck", "said"),
    [
        (LONGEST_P99_LAG_MS, machine(busiest=0.99), False, "kept time: p99 of its lag 20.0 ms"),
        (20.1, machine(busiest=0.95), True, "more --processes are needed"),
        (50.0, machine(cores=2, encoder=1.0, generator=0.95), True, "run it on another one"),
        (50.0, machine(cores=2, encoder=0.5, other_cores=1.5), True, "other programs took 1.50"),
        (50.0, machine(cores=2, encoder=0.5, other_cores=0.6, stolen=0.9), True, "its host gave 0.90"),
        (50.0, machine(cores=8), True, "of 8"),
        (math.nan, machine(), False, "sent nothing"),
    ],
)
def test_the_load_generator_is_judged_by_its_lag(lag_ms, use, is_bottleneck, said):
    verdict = judge_generator(lag_ms, use)
    assert verdict.is_bottleneck == is_bottleneck
    assert said in verdict.text


def test_an_easy_load_uses_nothing_up():
    assert resources(machine(encoder=0.5, generator=0.5)) == []


def test_a_member_has_so_many_cores_as_it_has_threads():
    use = machine(encoder=0.95, decoder=0.5, server=1.5)
    assert resources(use) == ["CPU of encoder"]
    assert resources(use, threads=2) == []


def test_a_full_machine_names_its_largest_parts():
    (found,) = find_exhausted(ON_TIME, machine(cores=2, encoder=0.8, server=0.7, generator=0.4), EASY, 0)
    assert found.resource == "CPU of the machine"
    assert "encoder 0.80, tritonserver 0.70, load generator 0.40" in found.text


def test_a_machine_that_others_fill_is_told_apart():
    assert resources(machine(cores=2, encoder=0.4, other_cores=1.6)) == ["CPU of the machine, by other programs"]


def test_a_machine_whose_host_took_it_away_is_said_to_be():
    (found,) = find_exhausted(ON_TIME, machine(cores=2, encoder=0.8, generator=0.4, stolen=0.7), EASY, 0)
    assert found.resource == "CPU of the machine, by its host"
    assert "1.20 of 2 cores busy" in found.text and "gave 0.70 of the machine's 2 cores to others" in found.text
    assert resources(machine(cores=2, encoder=0.8, generator=0.4, stolen=0.1)) == []


def test_the_longest_queue_counts_if_it_is_longer_than_the_work():
    members = EASY | {"encoder": member(queue_ms=9.0, compute_ms=8.0), "decoder": member(queue_ms=8.0, compute_ms=2.0)}
    assert resources(machine(), members) == ["queue of encoder"]
    assert resources(machine(), EASY | {"encoder": member(queue_ms=9.0, compute_ms=10.0)}) == []


def test_slots_come_first_and_an_overloaded_generator_next():
    late = judge_generator(80.0, machine(busiest=1.0))
    assert resources(machine(busiest=1.0, encoder=0.95), generator=late, refusals=2) == [
        "slots",
        "the load generator",
        "CPU of encoder",
    ]


def test_a_generator_that_was_only_kept_waiting_comes_last():
    use = machine(cores=2, encoder=0.95, generator=1.0)
    assert resources(use, generator=judge_generator(80.0, use))[-1] == "the load generator"


def test_nothing_is_known_of_members_without_their_counters():
    assert resources(machine(), members={}) == []
