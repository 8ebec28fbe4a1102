"""The gateway beside a server (`penstock serve --gateway`): a process of the wheel penstock-gateway."""

import importlib.util
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from types import TracebackType

from penstock.errors import PackageError
from penstock.runtime import module_command
from penstock.serving.launch import LOOPBACK

_PACKAGE = "penstock_gateway"
_STOP_LIMIT_S = 5.0
"""Beyond the time that live streams have to end."""


class GatewayProcess:
    """Serves the clients of Riva, OpenAI and browsers from the server on a gRPC port of this machine.

    Its own options are the variables PENSTOCK_GATEWAY_..., as for `penstock-gateway`. Use it as a context manager.
    """

    def __init__(self, grpc_port: int, drain_s: int, log_format: str, on_end: Callable[[int], None]):
        """`on_end`: called with its exit status, from a thread, if it ends by itself."""
        self._command = [*module_command(_PACKAGE), "--replicas", f"{LOOPBACK}:{grpc_port}"]
        self._drain_s = drain_s
        self._log_format = log_format
        self._on_end = on_end
        self._is_stopping = False
        self._process: subprocess.Popen[bytes] | None = None
        self._watch = threading.Thread(target=self._wait, name="penstock gateway", daemon=True)

    def __enter__(self) -> "GatewayProcess":
        defaults = {
            "PENSTOCK_GATEWAY_DRAIN_SECONDS": str(self._drain_s),
            "PENSTOCK_GATEWAY_LOG_FORMAT": self._log_format,
        }
        environment: Mapping[str, str] = defaults | os.environ
        # Ctrl-C reaches a whole group of processes; this one gets its signal from `stop`.
        self._process = subprocess.Popen(self._command, env=environment, start_new_session=True)
        self._watch.start()
        return self

    def stop(self) -> None:
        """Asks it to end its live streams and then itself. Does not wait."""
        self._is_stopping = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._watch.join(self._drain_s + _STOP_LIMIT_S)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        self._watch.join()

    def _wait(self) -> None:
        assert self._process is not None
        status = self._process.wait()
        if not self._is_stopping:
            self._on_end(status)


def check_gateway() -> None:
    """PackageError if the gateway is not installed."""
    if importlib.util.find_spec(_PACKAGE) is None:
        raise PackageError("--gateway needs the wheel penstock-gateway: pip install ./gateway, in the checkout")
