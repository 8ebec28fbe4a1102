"""The log on standard error, in the form of the server's. Lines of the access log have fields."""

import logging
import sys

from penstock_client.log_lines import LineFormatter


def configure_logs(log_format: str) -> None:
    """Sends all lines from INFO on to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("gateway", log_format))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_no_rejected_handshake)


def _is_no_rejected_handshake(record: logging.LogRecord) -> bool:
    """False for what uvicorn 0.54 writes as an error after each handshake that the application rejects."""
    return "without completing handshake" not in record.getMessage()
