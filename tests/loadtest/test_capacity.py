from hypothesis import given
from hypothesis import strategies as st

from loadtest.capacity import confirm, search


class Server:
    """Passes up to its capacity, and records the trials."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.tried: list[int] = []

    def __call__(self, streams: int) -> bool:
        self.tried.append(streams)
        return streams <= self.capacity


@given(st.integers(0, 300), st.integers(1, 64), st.integers(64, 256))
def test_the_search_finds_the_capacity(capacity, first, most):
    server = Server(capacity)
    assert search(server, first, most, resolution=0.0) == min(capacity, most)
    assert len(server.tried) == len(set(server.tried)) <= 20
    assert all(1 <= streams <= most for streams in server.tried)


def test_a_number_that_fails_the_longer_trial_goes_down_in_steps():
    passes, fails = Server(60), Server(50)
    assert (confirm(passes, 60, 0.05), passes.tried) == (60, [60])
    assert (confirm(fails, 60, 0.05), fails.tried) == (48, [60, 57, 54, 51, 48])
