"""Fault trials of two servers behind gateways: faults under live streams of all kinds, restarts, scaling, overload.

Every stream must tell the words and times of an undisturbed run, each once.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tests.helpers.server import fleet as faults
from tests.helpers.server.fleet import Fleet
from tests.helpers.server.fleet_streams import Run, make_streams, run_during, undisturbed
from tests.helpers.server.recordings import Recording
from tests.helpers.server.resources import Figures, read_metrics, wait_until_free

_STREAMS, _SPARE_SLOTS = 20, 6
_SILENCE_S = 60.0
_BEFORE_S = 12.0
_BACK_S = 60.0
_ROUNDS = 3


def killed_replica(model: Path, recordings: list[Recording]) -> Figures:
    """SIGKILL of all processes of a server, which starts again."""
    return _trial(model, recordings, lambda fleet: faults.kill_server(fleet, 0))


def stalled_replica(model: Path, recordings: list[Recording]) -> Figures:
    """SIGSTOP of all processes of a server for 8 s."""
    return _trial(model, recordings, lambda fleet: faults.stall_server(fleet, 0))


def drained_replica(model: Path, recordings: list[Recording]) -> Figures:
    """What SIGTERM does to `penstock serve`, which starts again."""
    return _trial(model, recordings, lambda fleet: faults.drain_server(fleet, 0))


def killed_stage(model: Path, recordings: list[Recording]) -> Figures:
    """SIGKILL of the encoder's process."""
    return _trial(model, recordings, lambda fleet: faults.kill_stage(fleet, 2))


def slowed_replica(model: Path, recordings: list[Recording]) -> Figures:
    """A server has a third of its speed for 10 s: nothing moves."""
    return _trial(model, recordings, lambda fleet: faults.slow_server(fleet, 0), moves=False)


def stalled_gateway(model: Path, recordings: list[Recording]) -> Figures:
    """SIGSTOP of the gateway for 5 s: nothing moves after it."""
    return _trial(model, recordings, lambda fleet: faults.stall_gateway(fleet, 0), moves=False)


def killed_gateway(model: Path, recordings: list[Recording]) -> Figures:
    """SIGKILL of one of two gateways behind HAProxy: its clients connect again."""
    return _trial(model, recordings, lambda fleet: faults.kill_gateway(fleet, 0), gateways=2, moves=False)


def drained_gateway(model: Path, recordings: list[Recording]) -> Figures:
    """SIGTERM of one of two gateways behind HAProxy."""
    return _trial(model, recordings, lambda fleet: faults.drain_gateway(fleet, 0), gateways=2, moves=False)


def rolling_restart(model: Path, recordings: list[Recording]) -> Figures:
    """Both servers drain and start again in turn, three times."""

    def roll(fleet: Fleet) -> None:
        for number in range(2 * _ROUNDS):
            faults.drain_server(fleet, number)

    return _trial(model, recordings, roll)


def scaled(model: Path, recordings: list[Recording]) -> Figures:
    """Of two servers one, two and one are in the gateway's file: no stream fails, and new ones use the second."""
    found: dict[str, float] = {}

    def scale(fleet: Fleet) -> None:
        begin_s = time.monotonic()
        fleet.offer(0, 1)
        while not read_metrics(fleet.running(1))["streams_live"]:
            assert time.monotonic() < begin_s + _BACK_S, "no stream on the new server"
            time.sleep(0.1)
        found["new_server_used_s"] = time.monotonic() - begin_s
        fleet.offer(0)

    return _trial(model, recordings, scale, moves=False, offered=(0,), slots=_STREAMS + _SPARE_SLOTS) | found


def _trial(
    model: Path,
    recordings: list[Recording],
    fault: Callable[[Fleet], object],
    gateways: int = 1,
    moves: bool = True,
    offered: Sequence[int] = (0, 1),
    slots: int = _STREAMS + _SPARE_SLOTS,
) -> Figures:
    """The fault comes when the streams have run for 12 s. moves: some streams must move; else none may."""
    streams = make_streams(recordings, _STREAMS, _SILENCE_S)
    with Fleet(model, slots, gateways) as fleet:
        expected = asyncio.run(undisturbed(fleet, streams))
        fleet.offer(*offered)
        before, at_s = fleet.moves(), [0.0, 0.0]

        def work() -> None:
            time.sleep(_BEFORE_S)
            at_s[0] = time.monotonic()
            fault(fleet)
            at_s[1] = time.monotonic()

        run = asyncio.run(run_during(fleet, streams, expected, work))
        moved, replayed_s = np.subtract(fleet.moves(), before).tolist()
        figures = _figures(run, moved, replayed_s, at_s)
        figures["slots_back_s"] = max(wait_until_free(fleet.running(number), _BACK_S) for number in range(2))
    assert not run.problems, (figures, run.problems[:3])
    assert (moved > 0) == moves, figures
    return figures


def _figures(run: Run, moved: float, replayed_s: float, at_s: Sequence[float]) -> Figures:
    return {
        "streams": len(run.played),
        "moved": int(moved),
        "replayed_s_per_stream": replayed_s / max(1, moved),
        "text_late_s_max": run.late_s(at_s[0]),
        "text_late_before_s_max": run.late_s(0.0, at_s[0]),
        "reconnections": run.reconnections,
        "equal_words": run.words,
        "fault_s": at_s[1] - at_s[0],
    }


TRIALS: tuple[Callable[[Path, list[Recording]], Figures], ...] = (
    killed_replica, stalled_replica, drained_replica, killed_stage, slowed_replica, stalled_gateway, killed_gateway,
    drained_gateway, rolling_restart, scaled,
)  # fmt: skip
