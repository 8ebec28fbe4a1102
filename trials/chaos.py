"""Random faults under streams of all kinds: two servers, two gateways, HAProxy before them.

    python -m trials.chaos [--minutes 30] [--seed 1] [--streams 20] [--context 70,6] [--json docs/reliability.json]

The seed chooses the faults and the pauses between them; a fault waits until everything runs again. Every stream must
tell each word of an undisturbed run once, in order; a stream whose gateway was killed, or for which there is no room
while a server is down, begins anew. At the end no audio
is kept for moves. The run is added to the JSON file, which has the sums of all runs; logs of the gateways are in
build/chaos. The exit status is 1 where a word was wrong, or where memory of the gateway that is never killed grew by
2 MiB per hour or more in a run of half an hour.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from benchmarks.results import environment, progress
from loadtest.options import BUNDLE, ROOT
from loadtest.processes import read_usage
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext, parse_context
from trials.server.fleet import FAULTS, Fleet
from trials.server.fleet_streams import Run, make_streams, run_during, undisturbed
from trials.server.recordings import make_recordings
from trials.server.resources import wait_until_free
from trials.server.running import CONTEXT
from trials.soak import Readings, memory_slope

SUMS = (
    *("chunks", "streams", "words", "words_changed", "moved", "replayed_s"),
    *("reconnections", "rejections", "problems", "server_crashes"),
)
_SPARE_SLOTS = 6
_PAUSE_S = (5.0, 30.0)
_READ_S = 5.0
_MAX_SLOPE_MIB_PER_H, _SLOPE_MINUTES = 2.0, 30.0
_ZERO_S = 30.0
_PARTS, _WARM_UP_PARTS = 24, 4


class Event(NamedTuple):
    """One fault."""

    pause_s: float
    """Since the end of the fault before it."""
    fault: str
    number: int


def schedule(seed: int, count: int) -> list[Event]:
    """The first faults of a seed."""
    chance = random.Random(seed)
    return [
        Event(round(chance.uniform(*_PAUSE_S), 1), chance.choice(list(FAULTS)), chance.randrange(6))
        for _ in range(count)
    ]


def main(words: list[str] | None = None) -> int:
    """Runs the faults; returns the exit status."""
    args = read_arguments(words)
    where = environment(1)
    row = {name: where[name] for name in ("date", "commit", "hardware", "load_average_before")}
    row |= {"minutes": args.minutes, "seed": args.seed, "parallel_streams": args.streams, "context": list(args.context)}
    row |= run_chaos(args)
    if args.json:
        add_run(args.json, row)
    print(json.dumps(row, indent=1))
    return int(is_failed(row))


def read_arguments(words: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="until the last fault (30)")
    parser.add_argument("--seed", type=int, default=1, help="chooses the faults (1)")
    parser.add_argument("--streams", type=int, default=20, help="live streams at a time (20)")
    parser.add_argument(
        "--context", type=parse_context, default=AttentionContext(*CONTEXT), metavar="L,R", help="of the servers (70,6)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="the sums of all runs, to which this one is added")
    return parser.parse_args(words)


def run_chaos(args: argparse.Namespace) -> dict:
    """The figures of one run."""
    recordings = make_recordings(BUNDLE)
    logs = ROOT / "build" / "chaos"
    logs.mkdir(parents=True, exist_ok=True)
    for log in logs.glob("*.log"):
        log.unlink()
    with Fleet(BUNDLE, args.streams + _SPARE_SLOTS, 2, logs, args.context) as fleet:
        streams = make_streams(recordings, args.streams)
        expected = asyncio.run(undisturbed(fleet, streams))
        progress(f"{sum(map(len, expected))} words without a fault")
        faults: list[str] = []
        with Readings(lambda: read_usage(gateway_id=fleet.gateways[0].process_id), _READ_S) as taken:
            run = asyncio.run(run_during(fleet, streams, expected, work(fleet, args, faults)))
        moved, replayed_s = fleet.moves()
        figures = figures_of(run, args.context) | {"moved": int(moved), "replayed_s": round(replayed_s)}
        figures |= {"faults": Counter(faults), "server_crashes": fleet.crashes}
        for number in range(2):
            wait_until_free(fleet.running(number), _ZERO_S)
        figures["replay_bytes"] = bytes_kept(fleet)
        least = least_memory(taken)
        figures["gateway_mib"] = [round(mib, 1) for _, mib in least]
        figures["gateway_mib_per_hour"] = slope(least)
        return figures


def work(fleet: Fleet, args: argparse.Namespace, done: list[str]) -> Callable[[], None]:
    """Makes a function that runs the schedule until its time is over, and names each event in `done`."""

    def run() -> None:
        begin_s = time.monotonic()
        end_s = begin_s + 60 * args.minutes
        for event in schedule(args.seed, 1 + round(60 * args.minutes / _PAUSE_S[0])):
            if time.monotonic() + event.pause_s > end_s:
                return
            time.sleep(event.pause_s)
            after_s = time.monotonic() - begin_s
            fleet.wait_until_up()
            progress(f"{event.fault} {event.number} after {after_s:.0f} s, load {os.getloadavg()[0]:.1f}")
            FAULTS[event.fault](fleet, event.number)
            done.append(event.fault)

    return run


def figures_of(run: Run, context: AttentionContext) -> dict:
    """Figures of the streams."""
    chunk_s = Checkpoint(BUNDLE).config.chunk_ms(context) / 1000
    return {
        **run.counts(),
        "chunks": round(run.audio_s / chunk_s),
        "text_late_s_max": round(run.late_s(), 2),
        "problems": len(run.problems),
        "reasons": [problem[:400] for problem in run.problems[:20]],
    }


def bytes_kept(fleet: Fleet) -> int:
    """Audio kept for moves once no stream is live."""
    end_s = time.monotonic() + _ZERO_S
    while (kept := fleet.replay_bytes()) and time.monotonic() < end_s:
        time.sleep(1.0)
    return int(kept)


def least_memory(taken: Readings) -> list[tuple[float, float]]:
    """Memory of the gateway that is never killed: seconds and MiB of the least reading in each part of the run.

    What streams and their audio need comes and goes by tens of MiB; memory that is lost raises the least, too.
    """
    found = [(each.time_s - taken.readings[0].time_s, each.pss_mib["gateway"]) for each in taken.readings]
    parts = (found[i * len(found) // _PARTS : (i + 1) * len(found) // _PARTS] for i in range(_PARTS))
    return [min(part, key=itemgetter(1)) for part in parts if part]


def slope(least: Sequence[tuple[float, float]]) -> float:
    """MiB per hour after the warm-up."""
    times_s, sizes_mib = zip(*least[_WARM_UP_PARTS:], strict=True)
    return round(memory_slope(times_s, sizes_mib), 2)


def is_failed(row: dict) -> bool:
    """Whether the run shows a defect."""
    grown = row["gateway_mib_per_hour"] or 0.0
    has_grown = row["minutes"] >= _SLOPE_MINUTES and grown >= _MAX_SLOPE_MIB_PER_H
    return bool(row["problems"] or row["replay_bytes"] or has_grown)


def add_run(path: Path, row: dict) -> None:
    """Adds a run to the file, and to the sums in it."""
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    runs.append(row)
    sums = {name: sum(run.get(name, 0) for run in runs) for name in SUMS}
    faults: Counter[str] = sum((Counter(run["faults"]) for run in runs), Counter())
    document = {"sums": sums | {"faults": dict(sorted(faults.items()))}, "runs": runs}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    del __file__  # else every client process would import this file first, torch included
    sys.exit(main())
