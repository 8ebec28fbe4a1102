"""The log on standard error, in the form of the server's. Lines of the access log have fields."""

import logging
import sys

from penstock_client.log_lines import LineFormatter

_OF_CLIENTS = (
    "without completing handshake", "Invalid HTTP request", "Unsupported upgrade request",
    "ExecuteBatchError raised in core",
)  # fmt: skip
_LIBRARIES = ("uvicorn.error", "grpc._cython.cygrpc")


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
