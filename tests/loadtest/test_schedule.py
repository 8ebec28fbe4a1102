from itertools import islice

import numpy as np

from loadtest.schedule import Schedule


def first(schedule: Schedule, number: int, count: int = 5) -> list[int]:
    return list(islice(schedule.recordings(count), number))


def test_the_same_seed_gives_the_same_test():
    one, other = Schedule(7, 2, 3), Schedule(7, 2, 3)
    assert one.start_s(10.0) == other.start_s(10.0)
    assert first(one, 20) == first(other, 20)


def test_seed_process_and_number_each_make_another_start():
    starts = {Schedule(*of).start_s(10.0) for of in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1))}
    assert len(starts) == 4


def test_starts_are_even_over_the_stagger():
    starts = [Schedule(0, process, number).start_s(10.0) for process in range(4) for number in range(100)]
    assert min(starts) >= 0 and max(starts) < 10
    assert (np.histogram(starts, bins=5, range=(0, 10))[0] > 50).all()


def test_every_recording_comes_once_a_round():
    order = first(Schedule(0, 0, 1), 15)
    for turn in (order[:5], order[5:10], order[10:]):
        assert sorted(turn) == list(range(5))


def test_users_begin_at_different_points():
    assert len({first(Schedule(0, 0, number), 1)[0] for number in range(40)}) == 5


def test_asking_twice_for_the_start_does_not_change_the_order():
    asked = Schedule(0, 0, 1)
    asked.start_s(3.0)
    asked.start_s(3.0)
    assert first(asked, 5) == first(Schedule(0, 0, 1), 5)
