"""The command `penstock-gateway`, and its log on standard error."""

import logging
import os
import resource
import sys
from collections.abc import Sequence

from penstock_common.command_parser import Parser
from penstock_common.declaration import unknown_variables
from penstock_common.log_lines import LineFormatter
from penstock_gateway.config import Config
from penstock_gateway.process.startup import StartError, read_config, read_files
from penstock_gateway.version import __version__

_OF_CLIENTS = (
    "without completing handshake", "Invalid HTTP request", "Unsupported upgrade request",
    "ExecuteBatchError raised in core",
)  # fmt: skip
"""Lines of libraries about what clients do, which are left out of the log."""
_LIBRARIES = ("uvicorn.error", "grpc._cython.cygrpc")
log = logging.getLogger(__name__)
_GROUPS = {
    "replicas": "servers and ports",
    "keys": "keys and TLS",
    "language": "streams",
    "captions": "files, page and process",
}
"""The sections of `--help`, by the first option of each."""
REJECTED = 2
"""Exit status for flags, files and ports that cannot work."""


def main(words: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit status."""
    parser = Parser(
        prog="penstock-gateway",
        description="Serves the protocols of NVIDIA Riva and OpenAI (audio HTTP and Realtime) in front of Penstock "
        "servers. Each flag has an environment variable (--http-port: PENSTOCK_GATEWAY_HTTP_PORT); the flag "
        "takes precedence. Defaults are in brackets.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    Config.add_flags(parser, _GROUPS)
    try:
        config = read_config(args=parser.parse_args(words))
        files = read_files(config)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # many shells allow 1,024 descriptors
        # gRPC writes a line for each process that is started while it runs, unless it is told before its import.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        # It writes lines of its own, without a limit, for calls and handshakes that it rejects.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        # After the flags, which are then checked without a pause.
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


def configure_logs(log_format: str) -> None:
    """Sends all lines from INFO on to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("gateway", log_format))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in _LIBRARIES:
        logging.getLogger(name).addFilter(_is_of_the_server)


def _is_of_the_server(record: logging.LogRecord) -> bool:
    """False for what uvicorn 0.54 writes for each handshake that is rejected and each request that is not HTTP, and
    gRPC 1.85 for a client that vanishes before its status is sent.
    """
    return not any(text in record.getMessage() for text in _OF_CLIENTS)
