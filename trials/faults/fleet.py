"""Fault trials of two servers behind gateways: faults under live streams of all kinds, restarts, scaling, overload.

Every stream must tell the words and times of an undisturbed run, each once. Some ask for speakers, beside others that
do not: of a stream that moves, the words go on without speakers, with a warning.
"""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import numpy as np
import websockets

from benchmarks.speaker_models import write_speakers
from loadtest.gateway_clients import LOST_REASON, GatewayFullError
from loadtest.processes import server_processes
from penstock.speakers.importer import import_speakers
from trials.server import fleet as faults
from trials.server.fleet import Fleet
from trials.server.fleet_streams import KINDS, SPEAKER_KINDS, Stream, disturb, make_streams, undisturbed
from trials.server.recordings import Recording
from trials.server.resources import Figures, read_metrics, wait_until_free
from trials.server.running import wait_until

FleetTrial = Callable[[Path, list[Recording]], Figures]
_STREAMS, _SPARE_SLOTS = 20, 6
_SILENCE_S = 25.0
"""Two borders of a segment without words; `make trials NAME=chaos` has 3 minutes."""
_BACK_S, _NOTICED_S = 60.0, 3.0
_ROUNDS = 3
_ATTEMPTS_S = 15.0
_SPEAKERS_STOP = "the words go on without speakers"
"""In the gateway's warning."""
_SHORT = Stream("segments", np.zeros(1600, np.int16))
_PACED = sum(kind != "file" for kind, _ in zip(itertools.cycle(KINDS), range(_STREAMS), strict=False))
"""Streams that stay open: a file's does only while it is recognized."""


def rolling_restart(model: Path, recordings: list[Recording]) -> Figures:
    """Both servers drain and start again in turn, three times."""

    def roll(fleet: Fleet) -> None:
        for number in range(2 * _ROUNDS):
            faults.drain_server(fleet, number)

    return _trial(model, recordings, roll)


def scaled(model: Path, recordings: list[Recording]) -> Figures:
    """The gateway's file names one server, then two, then one: new streams use the second, and end there."""
    found: dict[str, float] = {}

    def scale(fleet: Fleet) -> None:
        added = fleet.running(1)
        before, begin_s = read_metrics(added)["streams_started_total"], time.monotonic()
        fleet.offer(0, 1)
        while read_metrics(added)["streams_started_total"] == before:
            assert time.monotonic() < begin_s + _BACK_S, "no stream on the new server"
            asyncio.run(_SHORT.expected(fleet))
        found["new_server_used_s"] = time.monotonic() - begin_s
        # Those of the trial begin anew.
        wait_until(lambda: read_metrics(added)["streams_live"], _BACK_S, "no live stream on the new server")
        fleet.offer(0)

    return _trial(model, recordings, scale, moves=False, offered=(0,)) | found


def other_settings(model: Path, recordings: list[Recording]) -> Figures:
    """A server is killed, and the other one has another fingerprint: no stream moves there, and STREAM_LOST says so."""
    streams = make_streams(recordings, _STREAMS, kinds=["segments", "one segment"])
    ends: list[BaseException | None] = []
    with Fleet(model, _STREAMS + _SPARE_SLOTS, others={"PENSTOCK_BEAM_SIZE": "2"}) as fleet:
        expected = asyncio.run(undisturbed(fleet, streams))

        async def lose() -> None:
            playing = [
                asyncio.create_task(stream.play(fleet, words)) for stream, words in zip(streams, expected, strict=True)
            ]
            while not all(read_metrics(fleet.running(number))["streams_live"] for number in range(2)):
                await asyncio.sleep(0.1)
            await asyncio.to_thread(fleet.servers[0].kill)
            found = await asyncio.gather(*playing, return_exceptions=True)
            ends.extend(one if isinstance(one, BaseException) else None for one in found)

        asyncio.run(lose())
        lost = [error for error in ends if error is not None]
        assert 0 < len(lost) < len(ends), ends
        known = ("the others differ in model, settings or version", LOST_REASON)
        assert all(any(reason in str(error) for reason in known) for error in lost), lost
        assert fleet.moves()[0] == 0
        return {"streams": len(ends), "lost": len(lost)}


def dead_models(model: Path, recordings: list[Recording]) -> Figures:
    """A model of a server has ended and Triton lives: after 3 s no new stream goes there."""
    with Fleet(model, _STREAMS + _SPARE_SLOTS) as fleet:
        server = fleet.running(0)
        (process,) = server_processes(server.process_id)["encoder"]
        os.kill(process, signal.SIGKILL)
        time.sleep(_NOTICED_S)
        before = read_metrics(server)["streams_started_total"]
        for kind in ("segments", "one segment") * _STREAMS:
            asyncio.run(replace(_SHORT, kind=kind).expected(fleet))
        assert read_metrics(server)["streams_started_total"] == before
        return {"streams": 2 * _STREAMS}


def overloaded(model: Path, recordings: list[Recording]) -> Figures:
    """All slots are taken, and others try for 15 s: each is rejected with a code, and no stream is disturbed."""
    took_s: list[float] = []

    def attempt(fleet: Fleet) -> None:
        end_s = time.monotonic() + _ATTEMPTS_S
        for kind in itertools.cycle(("segments", "one segment")):
            if time.monotonic() > end_s:
                return
            begin_s = time.monotonic()
            try:
                asyncio.run(replace(_SHORT, kind=kind).expected(fleet))
            except (GatewayFullError, websockets.InvalidStatus) as error:
                assert not isinstance(error, websockets.InvalidStatus) or error.response.status_code == 429, error
                took_s.append(time.monotonic() - begin_s)
            except grpc.aio.AioRpcError as error:
                if error.details() != LOST_REASON:
                    raise
            else:
                raise AssertionError(f"{kind}: accepted, although all slots are taken")

    figures = _trial(model, recordings, attempt, moves=False, slots=_STREAMS // 2, only="silence")
    return figures | {"rejected": len(took_s), "rejected_after_ms_p95": 1000 * float(np.quantile(took_s, 0.95))}


def killed_gateway_slots(model: Path, recordings: list[Recording]) -> Figures:
    """SIGKILL of the only gateway: the slots of its streams become free by the servers' idle timeout."""
    streams = make_streams(recordings, _STREAMS)
    with Fleet(model, _STREAMS + _SPARE_SLOTS) as fleet:

        async def lose() -> float:
            playing = [asyncio.create_task(stream.play(fleet, ())) for stream in streams]
            while sum(read_metrics(fleet.running(number))["streams_live"] for number in range(2)) < _PACED:
                await asyncio.sleep(0.1)
            begin_s = time.monotonic()
            os.kill(fleet.gateways[0].process_id, signal.SIGKILL)
            for number in range(2):
                await asyncio.to_thread(wait_until_free, fleet.running(number), _BACK_S)
            back_s = time.monotonic() - begin_s
            for task in playing:
                task.cancel()
            await asyncio.gather(*playing, return_exceptions=True)
            return back_s

        return {"streams": _PACED, "slots_back_s": asyncio.run(lose())}


def _trial(
    model: Path,
    recordings: list[Recording],
    fault: Callable[[Fleet], object],
    gateways: int = 1,
    moves: bool = True,
    offered: Sequence[int] = (0, 1),
    slots: int = _STREAMS + _SPARE_SLOTS,
    only: str = "",
) -> Figures:
    """offered: the servers during the fault. only: the kind of all streams."""
    kinds = [only] if only else [*SPEAKER_KINDS, *KINDS, *SPEAKER_KINDS]
    streams = make_streams(recordings, _STREAMS, _SILENCE_S, kinds)
    with TemporaryDirectory(prefix="penstock-speakers-") as folder:
        speakers = import_speakers(write_speakers(Path(folder) / "source"), Path(folder) / "bundle").directory
        with Fleet(model, slots, gateways, logs=Path(folder), speakers=speakers) as fleet:
            expected = asyncio.run(undisturbed(fleet, streams))
            fleet.offer(*offered)
            fleet.wait_until_up()
            figures = disturb(fleet, streams, expected, lambda: fault(fleet), moves)
            back_s = max(wait_until_free(fleet.running(number), _BACK_S) for number in range(2))
        logs = "".join(log.read_text(encoding="utf-8") for log in Path(folder).glob("gateway-*.log"))
    figures |= {"speaker_warnings": logs.count(_SPEAKERS_STOP), "slots_back_s": back_s}
    # A stream that has told all its words may move, too.
    assert figures["speakers_stopped"] <= figures["speaker_warnings"] <= figures["moved"], figures
    return figures


def _during(name: str, fault: Callable[[Fleet, int], object], number: int = 0, **options: Any) -> FleetTrial:
    """A trial with one fault; options of `_trial`."""

    def trial(model: Path, recordings: list[Recording]) -> Figures:
        return _trial(model, recordings, lambda fleet: fault(fleet, number), **options)

    trial.__name__ = name
    return trial


TRIALS: tuple[FleetTrial, ...] = (
    _during("killed_replica", faults.kill_server),
    _during("stalled_replica", faults.stall_server),
    _during("drained_replica", faults.drain_server),
    _during("killed_stage", faults.kill_stage, 2),
    _during("slowed_replica", faults.slow_server, moves=False),
    _during("stalled_gateway", faults.stall_gateway, moves=False),
    _during("killed_gateway", faults.kill_gateway, gateways=2, moves=False),
    _during("drained_gateway", faults.drain_gateway, gateways=2, moves=False),
    killed_gateway_slots, rolling_restart, scaled, other_settings, dead_models, overloaded,
)  # fmt: skip
