"""`python -m trials.gateway_load`: the cost and the added latency of a gateway, beside streams without it.

Further options are those of the Locust file (`python -m loadtest options`).
"""

import argparse
import sys

from loadtest.capacity import slots_for
from loadtest.locust_run import ServerPlan, Target, fresh_server, headless_report, processes_for
from loadtest.options import DEFAULT_OUT, DIRECT, GATEWAYS, RIVA, add_server_arguments
from penstock.reporting import markdown_table
from trials.server.gateway import fresh_gateway


def main(words: list[str] | None = None) -> int:
    """Tests each target on the same server; returns the exit status: 1 where one did not pass."""
    parser = argparse.ArgumentParser(prog="trials.gateway_load", description=__doc__, allow_abbrev=False)
    parser.add_argument("--streams", type=int, default=8, metavar="N", help="(8)")
    parser.add_argument("--targets", nargs="+", choices=(DIRECT, *GATEWAYS), default=(DIRECT, *GATEWAYS), help="(all)")
    add_server_arguments(parser)
    args, rest = parser.parse_known_args(words)
    plan, rows, has_passed = ServerPlan(args.model, args.context, slots_for(args.streams), args.threads), [], True
    with (
        fresh_server(plan, args.protocol) as direct,
        fresh_gateway(direct.urls["grpc"], "--endpoint-silence-ms", "0", "--timeout-s", "60") as gateway,
    ):
        for name in args.targets:
            url = {DIRECT: direct.url, RIVA: gateway.grpc}.get(name, gateway.http)
            target = Target(url, direct.metrics_url, direct.process_id, gateway.process_id, direct.facts)
            load = ["--streams", str(args.streams), "--protocol", args.protocol, "--target", name, *rest]
            processes = args.processes or processes_for(args.streams, name)
            (window,) = headless_report(target, processes, DEFAULT_OUT / name, load)["windows"]
            has_passed &= window["passed"]
            latency = [window["chunk_latency_ms"][share] for share in ("p50", "p95")]
            cost = window["gateway_us_per_100_ms"] if name in GATEWAYS else ""
            rows.append([name, "pass" if window["passed"] else "FAIL", *latency, cost])
    print(markdown_table(["target", "", "chunk p50", "p95, ms", "gateway: us of CPU per 100 ms of audio"], rows))
    return int(not has_passed)


if __name__ == "__main__":
    sys.exit(main())
