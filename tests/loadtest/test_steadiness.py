import random

import numpy as np
import pytest

from loadtest.steadiness import PARTS, READINGS_PER_PART, growth_of_highest, judge, slope

HOUR = np.arange(0, 3600, 10.0)


def test_a_straight_line_has_its_slope_and_no_uncertainty():
    found = slope(HOUR + 1e6, 100 + 6 * HOUR / 3600)
    assert (found.per_hour, found.uncertainty_per_hour) == pytest.approx((6.0, 0.0), abs=1e-6)
    assert found.mean == pytest.approx(103, abs=0.01)


def test_what_does_not_change_is_flat():
    found = slope(HOUR, [50.0] * len(HOUR))
    assert (found.per_hour, found.uncertainty_per_hour) == pytest.approx((0.0, 0.0), abs=1e-9)
    assert judge(found, 1e-6) is True


def noisy(seed: int, growth_per_hour: float) -> list[float]:
    """Steps that last, as memory has them: each for a quarter of a tenth of the time."""
    generator = np.random.default_rng(seed)
    steps = np.repeat(generator.normal(0, 1, len(HOUR) // 9), 9)
    return list(200 + steps + growth_per_hour * HOUR / 3600)


def test_the_interval_holds_the_truth_nineteen_times_in_twenty():
    found = [slope(HOUR, noisy(seed, 3.0)) for seed in range(400)]
    held = sum(one.least_per_hour <= 3.0 <= one.most_per_hour for one in found)
    assert 365 <= held <= 394  # 380 expected; a slope that took the readings for independent would hold it in 250
    assert np.mean([one.per_hour for one in found]) == pytest.approx(3.0, abs=0.2)


def test_readings_may_come_at_any_moments():
    chance = random.Random(1)
    times = sorted(chance.uniform(0, 7200) for _ in range(300))
    found = slope(times, [10 - 4 * moment / 3600 for moment in times])
    assert (found.per_hour, found.uncertainty_per_hour) == pytest.approx((-4.0, 0.0), abs=1e-6)


@pytest.mark.parametrize("count", [0, 1, PARTS * READINGS_PER_PART - 1])
def test_too_few_readings_tell_nothing(count):
    with pytest.raises(ValueError, match=f"{count} readings in .* too few"):
        slope(np.arange(count), np.ones(count))


def test_a_gap_tells_nothing():
    with pytest.raises(ValueError, match="too few"):
        slope([*range(100), 1000.0], np.ones(101))


@pytest.mark.parametrize(("growth", "limit", "verdict"), [(0.0, 4.0, True), (20.0, 4.0, False), (0.0, 0.5, None)])
def test_flat_growing_or_not_to_be_told(growth, limit, verdict):
    found = slope(HOUR, noisy(7, growth))
    assert 0.5 < found.uncertainty_per_hour < 4.0
    assert judge(found, limit) is verdict


def test_counts_are_compared_by_their_highest():
    assert growth_of_highest([3, 9, 3, 3, 3, 3, 3, 3, 12, 3]) == 3
    assert growth_of_highest([5]) == 0
    assert growth_of_highest([1, 2, 3, 4, 5]) == 4
