"""`python -m loadtest.soak`: a constant load for an hour on a fresh server, and whether the server stayed as it was.

Further options are those of the Locust file (`python -m loadtest options`).
"""

import argparse
import shlex
import sys
from functools import partial
from pathlib import Path

from loadtest.fresh_server import ServerPlan, fresh_server
from loadtest.html_report import write_html
from loadtest.json_report import read_json, write_json
from loadtest.locust_run import REPORT, headless_report, processes_for
from loadtest.options import BUNDLE, CHOSEN_OPTIONS, DEFAULT_OUT, refuse_options
from loadtest.probe import take_snapshot
from loadtest.soak_readings import Reading, SoakReadings
from loadtest.soak_verdict import soak_document, soak_lines, undisturbed_line
from loadtest.termination import terminated_as_interrupt
from loadtest.trials import slots_for
from penstock.errors import PenstockError
from penstock.reporting.table import markdown_table

READINGS = "readings.csv"
_LONGEST_DISTANCE_S, _SHORTEST_DISTANCE_S = 10.0, 0.1
_READINGS = 60
"""Of a test too short for readings that far apart."""
_WARM_UP_SHARE = 1 / 6


def main(words: list[str] | None = None) -> int:
    """Command line; returns the exit status: 1 where it passed not or was not steady, 2 where it could not run."""
    parser, words = _parser(), sys.argv[1:] if words is None else words
    args, rest = parser.parse_known_args(words)
    if not (args.streams >= 1 and args.minutes > 0 and args.most_growth >= 0):
        parser.error("--streams must be 1 or more, --minutes above 0, --most-growth 0 or more")
    if not 0 <= (args.warm_up_minutes or 0.0) < args.minutes:
        parser.error(f"--warm-up-minutes is {args.warm_up_minutes:g}, expected 0 or more, and less than --minutes")
    try:
        refuse_options(rest, CHOSEN_OPTIONS, "a soak is a constant load on a server of its own")
        with terminated_as_interrupt():
            report = _soak(args, rest, shlex.join(["python", "-m", "loadtest.soak", *words]))
    except (PenstockError, ValueError, OSError) as error:
        _say(f"soak: error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    for line in soak_lines(report["soak"]):
        _say(line)
    return 0 if report["soak"]["is_steady"] and report["windows"][0]["passed"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="loadtest.soak", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--streams", type=int, default=8, metavar="N", help="(8)")
    add("--minutes", type=float, default=60.0, metavar="M", help="of load (60)")
    add("--warm-up-minutes", type=float, metavar="M", help="of that, not counted (a sixth)")
    add("--max-streams", type=int, metavar="N", help="slots of the server (two for each stream, and eight)")
    add("--most-growth", type=float, default=2.0, metavar="MIB", help="of a process that counts as flat, an hour (2)")
    add("--protocol", choices=("grpc", "http"), default="grpc", help="(grpc)")
    add("--model", type=Path, default=BUNDLE, metavar="BUNDLE", help="of the server that is started")
    add("--context", metavar="L,R", help="the same (the checkpoint's first)")
    add("--threads", type=int, default=1, metavar="N", help="the same, of each member (1)")
    add("--processes", type=int, metavar="N", help="of the load generator (one for 64 streams)")
    add("--out", type=Path, default=DEFAULT_OUT / "soak", metavar="DIR", help="(build/loadtest/soak)")
    return parser


def _soak(args: argparse.Namespace, rest: list[str], command: str) -> dict:
    """The load test's report with its part `soak`, which is written too. `command`: what the report says was called."""
    load_s = 60 * args.minutes
    warm_up_s = _WARM_UP_SHARE * load_s if args.warm_up_minutes is None else 60 * args.warm_up_minutes
    every_s = min(_LONGEST_DISTANCE_S, max(_SHORTEST_DISTANCE_S, load_s / _READINGS))
    arguments = ["--streams", str(args.streams), "--minutes", f"{args.minutes:.6g}", "--protocol", args.protocol, *rest]
    processes = args.processes or processes_for(args.streams)
    plan = ServerPlan(args.model, args.context, args.max_streams or slots_for(args.streams), args.threads)
    with (
        fresh_server(plan) as server,
        SoakReadings(partial(take_snapshot, server.metrics_url, server.process_id), every_s) as readings,
    ):
        try:
            report = headless_report(server.target(args.protocol), processes, args.out, arguments)
        except KeyboardInterrupt:  # what was seen until then is told, as an end too early
            if not (args.out / REPORT).exists():
                raise
            report = read_json(args.out / REPORT)
        finally:  # those of a server that ended too
            if readings.readings:
                args.out.mkdir(parents=True, exist_ok=True)
                (args.out / READINGS).write_text(to_csv(readings.readings), encoding="utf-8")
    report["circumstances"]["command"] = command
    report["soak"] = soak_document(readings.readings, report["windows"][0], load_s, warm_up_s, args.most_growth)
    write_json(args.out / REPORT, report)
    write_html(args.out / "loadtest.html", report)
    (args.out / "soak.md").write_text(to_markdown(report), encoding="utf-8")
    _say(f"wrote {args.out / REPORT}, loadtest.html, soak.md and {READINGS}")
    return report


def to_markdown(report: dict) -> str:
    """A table with its circumstances, for a document."""
    soak, where, window = report["soak"], report["circumstances"], report["windows"][0]
    rows = [
        [
            name,
            f"{found['pss_mib']:.1f}",
            f"{found['pss_slope_mib_per_h']:+.2f} ± {found['pss_uncertainty_mib_per_h']:.2f}",
            {True: "yes", False: "NO", None: "not known"}[found["is_memory_flat"]],
            found["descriptors"],
            f"{found['descriptors_grown']:+d}",
        ]
        for name, found in soak["processes"].items()
    ]
    header = ("process", "PSS MiB", "MiB an hour (95 %)", "flat", "descriptors", "grown")
    told = (
        f"{window['streams']:g} streams for {window['seconds'] / 60:.0f} minutes, the last "
        f"{soak['seconds'] / 60:.0f} counted: {soak['utterances']} utterances, {soak['streams_lost']} lost, "
        f"{window['late_chunks']} of {window['chunks']} chunks late; of {soak['minutes']} minutes "
        f"{soak['minutes_without_lost_stream']} without a lost stream, {soak['minutes_without_late_chunk']} without a "
        "late chunk. Over the whole load the machine's host gave "
        f"{soak['stolen_cores']:.2f} of its cores to others on average, {soak['most_stolen_cores']:.2f} at most "
        f"between two readings; {undisturbed_line(soak)}."
    )
    circumstances = f"`{where['command']}`; {where['hardware']}; {where['date']}, commit {where['commit']}"
    return f"{told}\n\n{markdown_table(header, rows, left=1)}\n\n{circumstances}\n"


def to_csv(readings: list[Reading]) -> str:
    """The readings, a line for each process; seconds count from the first of them."""
    begin_s = readings[0].time_s if readings else 0.0
    lines = ["seconds,answered,process,pss_mib,descriptors,stolen_cpu_s"]
    lines += [
        f"{reading.time_s - begin_s:.1f},{reading.answered:.0f},{name},{use.pss_bytes / 2**20:.2f},{use.descriptors},"
        f"{reading.stolen_cpu_s:.2f}"
        for reading in readings
        for name, use in reading.processes.items()
    ]
    return "\n".join(lines) + "\n"


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
