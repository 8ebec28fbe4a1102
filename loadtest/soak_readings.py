"""Readings of a server's processes at equal distances while a long test runs. Judges nothing."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from loadtest.probe import Snapshot
from loadtest.processes import GENERATOR, ProcessUse
from loadtest.triton_metrics import ENSEMBLE
from penstock.errors import PenstockError


@dataclass(frozen=True)
class Reading:
    """At one moment."""

    time_s: float
    """Of a clock that only goes on."""
    answered: float
    """Requests that the server has answered since its start."""
    processes: dict[str, ProcessUse]
    """By name."""
    stolen_cpu_s: float = 0.0
    """Of the machine, by its host, since it was started."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> "Reading | None":
        """Of the server's part of a snapshot; None where its counters could not be read."""
        if snapshot.counters is None:
            return None
        processes = {name: use for name, use in snapshot.usage.processes.items() if name != GENERATOR}
        answered = snapshot.counters.get((ENSEMBLE, "request_success"), 0.0)
        return cls(snapshot.usage.time_s, answered, processes, snapshot.usage.stolen_cpu_s)


class SoakReadings:
    """Takes a snapshot every `every_s` seconds in a thread of its own. Use as a context manager.

    PenstockError at its end where a snapshot failed, which ended the readings.
    """

    def __init__(self, take_snapshot: Callable[[], Snapshot], every_s: float):
        self.readings: list[Reading] = []
        """In the order of their times; moments at which the server's counters could not be read are left out."""
        self._take_snapshot = take_snapshot
        self._every_s = every_s
        self._error: Exception | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="soak readings", daemon=True)

    def __enter__(self) -> "SoakReadings":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        if self._error and kind is None:
            told = f"the readings ended after {len(self.readings)}: {type(self._error).__name__}: {self._error}"
            raise PenstockError(told) from self._error

    def _go_on(self) -> None:
        try:
            self._read_until_over()
        except Exception as error:  # noqa: BLE001  told at the end
            self._error = error

    def _read_until_over(self) -> None:
        next_s = time.monotonic()
        while not self._is_over.wait(max(0.0, next_s - time.monotonic())):
            reading = Reading.of(self._take_snapshot())
            if reading:
                self.readings.append(reading)
            next_s = max(next_s + self._every_s, time.monotonic())
