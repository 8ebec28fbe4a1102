"""The command `penstock-gateway`."""

import logging
import os
import sys
from collections.abc import Sequence

from penstock_client.declaration import Parser, unknown_variables
from penstock_gateway.config import Config
from penstock_gateway.process.startup import StartError, read_config, read_files
from penstock_gateway.version import __version__

log = logging.getLogger(__name__)
_GROUPS = {
    "replicas": "servers and ports",
    "keys": "keys and TLS",
    "language": "streams",
    "captions": "files, page and process",
}
"""By the first option of each."""
REJECTED = 2
"""Exit status for flags, files and ports that cannot work."""


def main(words: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit status."""
    parser = Parser(
        prog="penstock-gateway",
        description="Serves the protocols of NVIDIA Riva, OpenAI (audio HTTP and Realtime) and KServe v2 in front of "
        "Penstock servers. Each flag has an environment variable (--http-port: PENSTOCK_GATEWAY_HTTP_PORT); the flag "
        "takes precedence. Defaults are in brackets.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    Config.add_flags(parser, _GROUPS)
    try:
        config = read_config(args=parser.parse_args(words))
        files = read_files(config)
        # gRPC writes a line for each process that is started while it runs, unless it is told before its import.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        # It writes lines of its own, without a limit, for calls and handshakes that it rejects.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        # Its threads that read the connections of clients would wake each other for every small message.
        os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
        # After the flags, which are then checked without a pause.
        from penstock_gateway.process.logs import configure_logs
        from penstock_gateway.process.serving import run_gateway

        configure_logs(config.log_format)
        for warning in unknown_variables(Config.prefix, config.variables()):
            log.warning(warning)
        run_gateway(config, files)
    except StartError as error:
        sys.stderr.write(f"penstock-gateway: error: {error}\n")
        return REJECTED
    except KeyboardInterrupt:
        pass
    return 0
