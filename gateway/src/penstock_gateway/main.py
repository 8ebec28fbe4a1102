"""The command `penstock-gateway`."""

import argparse
import os
import sys
from collections.abc import Sequence

from penstock_gateway.config import Config
from penstock_gateway.version import __version__

REJECTED = 2
"""Exit status for flags, files and ports that cannot work."""


def main(words: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="penstock-gateway",
        description="Serves NVIDIA Riva's gRPC, OpenAI's audio HTTP and Realtime and KServe's protocols in front of "
        "Penstock servers. Each flag has an environment variable (--http-port: PENSTOCK_GATEWAY_HTTP_PORT); the flag "
        "takes precedence.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    for option in Config.options():
        option.add_flag(parser)
    try:
        config = Config.read(args=parser.parse_args(words))
        # gRPC writes a line for each process that is started while it runs, unless it is told before its import.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        # Its threads that read the connections of clients would wake each other for every small message.
        os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
        # After the flags, which are then checked without a pause.
        from penstock_gateway.logs import configure_logs
        from penstock_gateway.processes import run_gateway

        configure_logs(config.log_format)
        run_gateway(config)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"penstock-gateway: {error}\n")
        return REJECTED
    except KeyboardInterrupt:
        pass
    return 0
