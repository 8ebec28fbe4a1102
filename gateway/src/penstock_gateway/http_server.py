"""uvicorn's configuration: limits of the HTTP port and TLS."""

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

from penstock_gateway.config import Config
from penstock_gateway.security.limits import MAX_FRAME_BYTES


class HttpServer(uvicorn.Server):
    """uvicorn without handlers of signals: the process has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield


def http_server(app: Starlette, config: Config) -> HttpServer:
    """The server of the HTTP port, for `serve` with its sockets."""
    return HttpServer(_uvicorn_config(app, config))


def _uvicorn_config(app: Starlette, config: Config) -> uvicorn.Config:
    return uvicorn.Config(
        app,
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
        timeout_graceful_shutdown=1,
    )
