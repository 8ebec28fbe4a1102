"""What streams need to know of a server's model: read once per connection, and again after it was lost."""

import asyncio
import threading
import time
from dataclasses import replace

from penstock_client.alignment import ChunkGeometry, read_geometry
from penstock_client.connection import Endpoint
from penstock_client.errors import ClientError, FilesOnlyError
from penstock_client.options import StreamOptions, is_live_window
from penstock_client.server_info import takes_files
from penstock_client.transport.model_config import try_parameters

_MAX_READ_S = 2.0
_RETRY_S = 5.0
"""Between two attempts to read from a server that does not answer."""
_LOST = {"CONNECTION_LOST", "REPLY_TIMEOUT", "SERVER_DRAINING", "SERVER_UNREACHABLE"}
"""The codes of errors after which another server, with another model, may answer at the address."""


class ServerChunks:
    """The geometry of one server's model, and whether it takes live audio. Thread-safe.

    No failure to read it is an error: the streams then send as they do to a server that does not publish it, and their
    own connection says what is wrong.
    """

    def __init__(self, endpoint: Endpoint):
        self._endpoint = replace(endpoint, timeout_s=min(endpoint.timeout_s, _MAX_READ_S))
        self._lock = threading.Lock()
        self._geometry: ChunkGeometry | None = None
        self._files_only: str | None = None
        """The name of an offline model."""
        self._losses = 0
        self._known_after: int | None = None
        """The number of losses before the geometry was read."""
        self._next_attempt_s = 0.0

    def get(self) -> ChunkGeometry | None:
        """The geometry, after a loss the last one known; None where it is not published or not known. Reads it once."""
        if self._is_known:
            return self._geometry
        with self._lock:
            if not self._is_known and time.monotonic() >= self._next_attempt_s:
                self._read()
            return self._geometry

    async def get_async(self) -> ChunkGeometry | None:
        """As `get`, without blocking the event loop."""
        return self._geometry if self._is_known else await asyncio.to_thread(self.get)

    def check_live(self, options: StreamOptions | None) -> None:
        """Raises FilesOnlyError for an offline model, unless the options have a live window."""
        self.get()
        if self._files_only is not None and not is_live_window(options.window if options else None):
            raise FilesOnlyError(self._files_only)

    def forget(self) -> None:
        """The connection was lost. Does not wait for a thread that reads."""
        self._losses += 1
        self._next_attempt_s = 0.0

    def note_failure(self, error: ClientError) -> None:
        """A stream has failed."""
        if error.code in _LOST:
            self.forget()

    def _read(self) -> None:
        losses = self._losses
        parameters = try_parameters(self._endpoint)
        self._next_attempt_s = time.monotonic() + _RETRY_S
        if parameters is None:  # what is known stays: most often the same model comes back
            return
        self._geometry = read_geometry(parameters)
        self._files_only = parameters.get("model", "") if takes_files(parameters) else None
        self._known_after = losses

    @property
    def _is_known(self) -> bool:
        return self._known_after == self._losses
