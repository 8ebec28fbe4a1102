"""When one user starts and which recordings it plays: random, but the same for the same seed. Knows no clock."""

import random
from collections.abc import Iterator


class Schedule:
    """Of user `number` on process `process`: how Locust spreads users over processes is the same every time too."""

    def __init__(self, seed: int, process: int, number: int):
        self._random = random.Random(f"{seed}/{process}/{number}")
        self._start = self._random.random()

    def start_s(self, stagger_s: float) -> float:
        """Seconds after the user was made at which its first recording begins: even over [0, stagger_s)."""
        return self._start * stagger_s

    def recordings(self, count: int) -> Iterator[int]:
        """Numbers below `count`, without an end: all in random order from a random point, then all again."""
        order = self._random.sample(range(count), count)
        while True:
            yield from order
