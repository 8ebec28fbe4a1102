"""uvicorn's configuration: limits of the HTTP port and TLS."""

import uvicorn
from starlette.applications import Starlette

from penstock_gateway.config import Config
from penstock_gateway.security.limits import MAX_FRAME_BYTES

_SEND_QUEUE_BYTES = 1 << 16


def http_server_config(app: Starlette, config: Config, port: int | None = None) -> uvicorn.Config:
    """The server of the HTTP port; `port` replaces that of the configuration."""
    return uvicorn.Config(
        app,
        host=config.host,
        port=config.http_port if port is None else port,
        loop="none",
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=MAX_FRAME_BYTES,
        ws_per_message_deflate=False,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        ssl_certfile=config.tls_cert,
        ssl_keyfile=config.tls_key,
        timeout_graceful_shutdown=config.drain_seconds,
    )
