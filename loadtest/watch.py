"""Takes the snapshots at the borders of a plan's windows, while the test runs. Waits with gevent."""

from collections.abc import Callable
from dataclasses import replace

import gevent

from loadtest.plan import Plan, Window
from loadtest.player import now_s
from loadtest.probe import Snapshot

Measured = tuple[Window, Snapshot, Snapshot]


class Watch:
    """Of one test, which begins when this is made."""

    def __init__(self, plan: Plan, probe: Callable[[], Snapshot]):
        self.began_s = now_s()
        self.measured: list[Measured] = []
        """Windows with the snapshots at their begin and end."""
        self._probe = probe
        self._open: tuple[Window, Snapshot] | None = None
        self._greenlet = gevent.spawn(self._follow, plan)

    def finish(self) -> list[Measured]:
        """Ends with the test, and a window with it that the test did not live to the end of."""
        self._greenlet.kill()
        if self._open:
            window, before = self._open
            end_s = now_s() - self.began_s
            self.measured.append((replace(window, end_s=min(window.end_s, end_s)), before, self._snapshot()))
            self._open = None
        return self.measured

    def _follow(self, plan: Plan) -> None:
        latest: Snapshot | None = None
        reached_s = -1.0
        for window in plan.windows:
            self._wait_until(window.begin_s)
            before = latest if latest and window.begin_s == reached_s else self._snapshot()
            self._open = (window, before)
            self._wait_until(window.end_s)
            latest, reached_s = self._snapshot(), window.end_s
            self._open = None
            self.measured.append((window, before, latest))

    def _wait_until(self, moment_s: float) -> None:
        gevent.sleep(max(0.0, self.began_s + moment_s - now_s()))

    def _snapshot(self) -> Snapshot:
        """In a thread: memory of large processes takes the system a while to count, and users must not wait."""
        return gevent.get_hub().threadpool.apply(self._probe)
