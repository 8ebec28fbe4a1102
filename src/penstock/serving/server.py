"""Starts, monitors and stops tritonserver with a model repository."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections import ChainMap
from collections.abc import Callable
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

import psutil

from penstock.errors import PenstockError, PortError, ServerCrashError, ServerError
from penstock.serving.drain import Drained, drain_streams
from penstock.serving.health import answers, probe
from penstock.serving.launch import (
    LOOPBACK,
    Ports,
    ServerOptions,
    claim_ports,
    has_gpu,
    launch_command,
    launch_environment,
    working_directory,
)
from penstock.serving.model_repository import copy_models
from penstock.serving.server_log import ServerLog
from penstock.serving.settings import ServeOptions
from penstock.serving.triton_install import TritonInstall

START_LIMIT_S = 600.0
"""A server that is not ready after this long has failed."""
_EXIT_GRACE_S = 5.0  # after the drain; Triton 2.51 takes 3.9 s to exit, and may hang when its drain has timed out
_POLL_S = 0.05
_STARTS = 3
_PROBE_S = 5.0
_SHARED_MEMORY = Path("/dev/shm")

# The script's standard input closes when this process stops it or ends in any way, SIGKILL included.
_GUARD_SCRIPT = 'read -r _; kill -s KILL -- "-$1"; rm -rf -- "$2" "$3"*'


class TritonServer:
    """One tritonserver and its model processes, in their own process group.

    As a context manager, it starts the server, waits until it is ready, and stops it at the end. If this process ends
    before that, even by SIGKILL, a guard process kills the server and removes its files.
    """

    def __init__(
        self,
        install: TritonInstall,
        options: ServerOptions,
        forward_log: Callable[[str], object] | None = None,
    ):
        """forward_log: called with each line of the server's log, as `penstock.serving.server_log` selects them."""
        self._install = install
        self._options = options
        self._forward_log = forward_log
        self._running: _Running | None = None
        self.ports = options.ports
        """The ports in use, once started; a further start uses the same."""

    @property
    def process_id(self) -> int:
        """Id of tritonserver's process and of its process group; ServerError when not running."""
        return self._started().process.pid

    def start(self) -> None:
        """Starts the processes. PenstockError for a port in use or a wrong setting comes before any process starts."""
        environment = ChainMap(dict(self._options.environment), os.environ)
        settings = ServeOptions.read(environment)
        self.ports = claim_ports(self.ports, self._options.address)
        runtime = Path(tempfile.mkdtemp(prefix="penstock-"))
        shared_memory = f"penstock-{secrets.token_hex(8)}-"
        try:
            options = _with_copied_models(self._options, runtime, settings)
            process = self._launch(options, runtime, shared_memory)
        except PenstockError:
            shutil.rmtree(runtime, ignore_errors=True)
            raise
        try:
            guard = _start_guard(process.pid, runtime, _SHARED_MEMORY / shared_memory)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        assert process.stdout is not None
        log = ServerLog(
            process.stdout, self._forward_log, settings.log_format, settings.log_level, self._options.is_verbose
        )
        self._running = _Running(process, guard, log, runtime)

    def _launch(self, options: ServerOptions, runtime: Path, shared_memory: str) -> subprocess.Popen[str]:
        try:
            return subprocess.Popen(
                launch_command(self._install, options, self.ports, shared_memory),
                cwd=working_directory(runtime),
                env=launch_environment(self._install, options, runtime),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise ServerError(f"{self._install.executable} cannot be started: {error.strerror}") from error

    def wait_ready(
        self,
        timeout_s: float = START_LIMIT_S,
        is_cancelled: Callable[[], bool] = lambda: False,
        on_wait: Callable[[], object] = lambda: None,
    ) -> bool:
        """Returns True once all models are loaded, False once `is_cancelled` returns True.

        ServerError has the models' messages as soon as a model fails to load, if the server has ended, and if it is
        not ready in time; ServerCrashError if it has crashed; PortError if another process has taken one of its ports
        since they were checked. on_wait: called several times per second.
        """
        log, deadline = self._started().log, time.monotonic() + timeout_s
        while not is_cancelled():
            if reason := log.load_failure():  # Triton ends only when the other models are loaded
                raise ServerError(f"the server did not start: {reason}")
            if self.has_ended():
                has_crashed = self._started().process.returncode < 0
                if not has_crashed:
                    claim_ports(self.ports, self._options.address)
                kind = ServerCrashError if has_crashed else ServerError
                raise kind(f"the server did not start: {self.end_reason()}")
            if self._is_ready():
                log.release()
                return True
            if time.monotonic() > deadline:
                raise ServerError(f"the server is not ready after {timeout_s:g} s: {log.last_lines()}")
            on_wait()
            time.sleep(_POLL_S)
        return False

    def has_ended(self) -> bool:
        """True if tritonserver's process has ended or was never started."""
        return self._running is None or self._running.process.poll() is not None

    def end_reason(self) -> str:
        """Why a server that was started ended by itself."""
        process, _, log, _ = self._started()
        log.wait_until_closed(1.0)
        status = process.returncode
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        return f"{log.failure_reason()} ({how})"

    def stop(self, drain: bool = True, on_wait: Callable[[int], object] = lambda streams: None) -> Drained:
        """Ends all processes and removes their files; with `drain`, live streams have `drain_s` to end first.

        Connections that clients hold without a stream are closed. on_wait: see `drain_streams`.
        """
        drained = Drained()
        if self._running is None:
            return drained
        process, guard, log, runtime = self._running
        if drain and not self.has_ended():
            counted = drain_streams(runtime, self._options.drain_s, self.has_ended, on_wait)
            drained = counted or drained
            if drained.cut_off:
                probe(f"{LOOPBACK}:{self.ports.http}", _PROBE_S)  # the features model logs the streams
            log.hold_back()
            process.terminate()
            # Triton would wait for the sequences of streams that are left, and for gRPC calls that clients keep open.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_GRACE_S + (self._options.drain_s if counted is None else 0))
        log.hold_back()
        self.kill()
        guard.communicate()  # closes its standard input
        process.wait()
        log.wait_until_closed(5.0)
        self._running = None
        return drained

    def kill(self) -> None:
        """Kills all processes. A signal handler may call it while `stop` waits for the drain."""
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running.process.pid, signal.SIGKILL)

    def __enter__(self) -> "TritonServer":
        """Starts again up to two times: after a crash, as Triton's Python backend may crash at any time, and on other
        free ports where another process has taken one.
        """
        for starts_left in reversed(range(_STARTS)):
            try:
                self.start()
                self.wait_ready()
                break
            except BaseException as error:
                self.stop(drain=False)
                has_lost_port = isinstance(error, PortError) and 0 in self._options.ports
                if not (has_lost_port or isinstance(error, ServerCrashError)) or not starts_left:
                    raise
                if has_lost_port:
                    self.ports = self._options.ports
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _started(self) -> "_Running":
        if self._running is None:
            raise ServerError("the server is not running")
        return self._running

    def _is_ready(self) -> bool:
        """Checks two ports: Triton reports ready over HTTP before it opens the port of the metrics.

        Another process may answer there that has taken a port: Triton ends soon after that.
        """
        for port, path in ((self.ports.http, "/v2/health/ready"), (self.ports.metrics, "/metrics")):
            if not answers(HTTPConnection(LOOPBACK, port, timeout=1.0), path):
                return False
        return _listens(self.process_id, self.ports)


class _Running(NamedTuple):
    process: subprocess.Popen[str]
    guard: subprocess.Popen[bytes]
    log: ServerLog
    runtime: Path


def _listens(process_id: int, ports: Ports) -> bool:
    """True if the process has opened all these ports, or does not let others see which it has."""
    try:
        sockets = psutil.Process(process_id).net_connections("tcp")
    except psutil.AccessDenied:
        return True
    except psutil.NoSuchProcess:
        return False
    return set(ports) <= {socket.laddr.port for socket in sockets if socket.status == psutil.CONN_LISTEN}


def _start_guard(process_group: int, runtime: Path, shared_memory: Path) -> subprocess.Popen[bytes]:
    """A shell that waits for the end of this process.

    A death signal (prctl) would follow the thread, not the process, and would leave model processes and files behind.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", _GUARD_SCRIPT, "sh", str(process_group), runtime, shared_memory],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def _with_copied_models(options: ServerOptions, runtime: Path, settings: ServeOptions) -> ServerOptions:
    """`options` with a copy of the models in the runtime directory."""
    try:
        models = copy_models(
            options.model_repository,
            runtime / "models",
            settings.queue_delay_ms,
            options.information,
            has_gpu(options),
            bool(settings.speakers),
        )
    except (OSError, ValueError) as error:
        raise ServerError(f"{runtime}: the models cannot be copied there: {error}") from error
    return replace(options, model_repository=models)
