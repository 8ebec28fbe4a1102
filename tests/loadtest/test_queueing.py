import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.queueing import predict


def test_by_hand():
    """mu = 10, lambda = 5: 1/10 + 5 / (2 * 10 * 5) = 0.1 + 0.05."""
    predicted = predict(arrivals_per_s=5.0, service_s=0.1)
    assert predicted == pytest.approx((0.5, 0.05, 0.15))


@given(st.floats(0.01, 1000), st.floats(1e-4, 0.999))
def test_the_paper_s_formula(mu, utilisation):
    arrivals = utilisation * mu
    predicted = predict(arrivals, 1 / mu)
    assert predicted.total_s == pytest.approx(1 / mu + arrivals / (2 * mu * (mu - arrivals)))
    assert predicted.queue_s == pytest.approx(predicted.total_s - 1 / mu, abs=1e-9 / mu)


def test_no_arrivals_wait_for_nobody():
    assert predict(0.0, 0.1) == (0.0, 0.0, 0.1)


@pytest.mark.parametrize("arrivals", [10.0, 25.0])
def test_more_than_can_be_served_waits_for_ever(arrivals):
    assert predict(arrivals, 0.1) == (pytest.approx(arrivals / 10), math.inf, math.inf)


@given(st.floats(0.0, 0.8), st.floats(0.0001, 0.1))
def test_more_arrivals_wait_longer(utilisation, more):
    service_s = 0.02
    rates = (utilisation / service_s, (utilisation + more) / service_s)
    assert predict(rates[0], service_s).queue_s < predict(rates[1], service_s).queue_s


@pytest.mark.parametrize("arguments", [(-1.0, 0.1), (1.0, -0.1)])
def test_negative_values_are_refused(arguments):
    with pytest.raises(ValueError, match="expected none below 0"):
        predict(*arguments)
