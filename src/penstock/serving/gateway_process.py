"""The gateway beside a server (`penstock serve --gateway`): a process of the wheel penstock-gateway."""

import importlib
import importlib.util
import os
import signal
import ssl
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection, HTTPSConnection
from types import TracebackType
from typing import NamedTuple

from penstock.errors import PackageError, SettingError
from penstock.runtime import module_command
from penstock.serving.health import answers
from penstock.serving.launch import OtherPort
from penstock_common.listening import local_host_port

_PACKAGE = "penstock_gateway"
_READY_TIMEOUT_S = 2.0
_STOP_LIMIT_S = 5.0
"""Beyond the time that live streams have to end."""


class GatewayOptions(NamedTuple):
    """A gateway's options, as far as the launcher needs them."""

    listen: str
    ports: Sequence[OtherPort]
    """HTTP, gRPC, metrics."""
    is_tls: bool
    has_keys: bool
    has_captions: bool

    @property
    def address(self) -> str:
        """HOST:PORT of HTTP, from this machine."""
        return local_host_port(self.listen, self.ports[0].port)


class GatewayProcess:
    """Serves the clients of Riva, OpenAI and browsers from the server on a gRPC port of this machine.

    Its own options are the variables PENSTOCK_GATEWAY_..., as for `penstock-gateway`. Use it as a context manager.
    """

    def __init__(
        self, replica: str, options: GatewayOptions, drain_s: int, log_format: str, on_end: Callable[[int], None]
    ):
        """`replica`: HOST:PORT of the server. `on_end`: called with the status, from a thread, if it ends by itself."""
        self._command = [*module_command(_PACKAGE), "--replicas", replica]
        self._options = options
        self._drain_s = drain_s
        self._log_format = log_format
        self._on_end = on_end
        self._is_stopping = self.has_failed = False
        """Failed: it has ended by itself."""
        self._process: subprocess.Popen[bytes] | None = None
        self._watch = threading.Thread(target=self._wait, name="penstock gateway", daemon=True)

    def __enter__(self) -> "GatewayProcess":
        defaults = {
            "PENSTOCK_GATEWAY_DRAIN_SECONDS": str(self._drain_s),
            "PENSTOCK_GATEWAY_LOG_FORMAT": self._log_format,
        }
        ports = {each.option: str(each.port) for each in self._options.ports}
        environment: Mapping[str, str] = defaults | os.environ | ports
        # Ctrl-C reaches a whole group of processes; this one gets its signal from `stop`.
        self._process = subprocess.Popen(self._command, env=environment, start_new_session=True)
        self._watch.start()
        return self

    def is_ready(self) -> bool:
        """True if it has found the server, so that a stream can start."""
        address, timeout_s = self._options.address, _READY_TIMEOUT_S
        if not self._options.is_tls:
            return answers(HTTPConnection(address, timeout=timeout_s), "/health/ready")
        context = ssl._create_unverified_context()  # the certificate names another host
        return answers(HTTPSConnection(address, timeout=timeout_s, context=context), "/health/ready")

    def invitation(self) -> list[str]:
        """Lines for who has started it: a command that works, and the captions page."""
        options, scheme = self._options, "https" if self._options.is_tls else "http"
        flags = "-k " * options.is_tls + "-H 'Authorization: Bearer KEY' " * options.has_keys
        url = f"{scheme}://{options.address}"
        lines = [f"try: curl {flags}{url}/v1/audio/transcriptions -F file=@yours.wav -F model=whisper-1"]
        return [*lines, f"live captions: {url}/captions"] if options.has_captions else lines

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
            self.has_failed = True
            self._on_end(status)


def check_gateway(environment: Mapping[str, str] = os.environ) -> GatewayOptions:
    """The options of a gateway that would start, from its variables.

    PackageError if the wheel is not installed; SettingError names a wrong variable or file.
    """
    if importlib.util.find_spec(_PACKAGE) is None:
        raise PackageError("--gateway needs the wheel penstock-gateway: pip install ./gateway, in the checkout")
    startup = importlib.import_module(f"{_PACKAGE}.process.startup")
    try:
        config = startup.read_config(environment)
        startup.read_files(config, environment)
    except startup.StartError as error:
        raise SettingError(error.message) from None
    hosts = {"http_port": config.listen, "grpc_port": config.listen, "metrics_port": config.metrics_listen}
    ports = [OtherPort(config.option(name).variable, host, getattr(config, name)) for name, host in hosts.items()]
    has_keys = config.keys is not None
    return GatewayOptions(config.listen, ports, config.tls_cert is not None, has_keys, config.serves_captions)
