"""`penstock compare`: two reports of `penstock evaluate` on the same recordings."""

import argparse
from pathlib import Path

from penstock.errors import SettingError


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Registers the command."""
    parser = subparsers.add_parser(
        "compare",
        description="Compares reports of `penstock evaluate --json` on the same recordings by a paired bootstrap, and "
        "lists the utterances that changed. Runs are paired by context and decoder; a report of one run is compared "
        "with each run of the other.",
    )
    parser.add_argument("reports", nargs=2, type=Path, metavar="REPORT", help="JSON report")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="show N changed utterances (20)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks both reports before the first comparison."""
    from penstock.evaluation.comparison import pair_runs, read_runs, render_comparison

    if args.limit < 0:
        raise SettingError(f"--limit is {args.limit}, expected 0 or more")
    pairs = pair_runs(*map(read_runs, args.reports))
    print("\n\n".join(render_comparison(a, b, args.limit) for a, b in pairs))
    return 0
