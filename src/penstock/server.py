"""Runs tritonserver with a model repository: starts, watches and stops it. Knows nothing of speech or checkpoints."""

import contextlib
import http.client
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
from pathlib import Path

from penstock.errors import PenstockError
from penstock.model_repository import copy_with_queue_delay
from penstock.patience import patience_library
from penstock.ports import claim_ports
from penstock.server_launch import LOOPBACK, ServerOptions, launch_command, launch_environment, working_directory
from penstock.server_log import ServerLog
from penstock.settings import QUEUE_DELAY_MS
from penstock.triton_install import TritonInstall

_EXIT_GRACE_S = 2.0  # after the drain; Triton 2.51 may hang for ever when its drain has timed out
_POLL_S = 0.05
_SHARED_MEMORY = Path("/dev/shm")

# Its standard input closes when we stop it, and when we end in any other way, killed included.
_GUARD_SCRIPT = 'read -r _; kill -s KILL -- "-$1"; rm -rf -- "$2" "$3"*'


class ServerError(PenstockError):
    """The server did not start, or ended by itself."""


class TritonServer:
    """One tritonserver and its models' processes, in a process group of their own.

    Use as a context manager: entering starts it and waits until it is ready, leaving stops it. If this process ends
    without that, even by SIGKILL, a guard process kills the server and removes its files.
    """

    def __init__(
        self,
        install: TritonInstall,
        options: ServerOptions,
        forward_log: Callable[[str], object] | None = None,
        verbose: bool = False,
    ):
        """forward_log gets each line of the server's log: all with `verbose`, else those after the server is ready."""
        self._install = install
        self._options = options
        self._forward_log = forward_log
        self._verbose = verbose
        self._process: subprocess.Popen[str] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._log: ServerLog | None = None
        self.ports = options.ports
        """Those in use, once started."""

    @property
    def process_id(self) -> int | None:
        """Of tritonserver itself, and of its process group; None when not running."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Starts the processes. A port in use or a wrong setting raises PenstockError before anything is started."""
        delay_ms = QUEUE_DELAY_MS.read(ChainMap(dict(self._options.environment), os.environ))
        self.ports = claim_ports(self._options.ports, self._options.address)
        runtime = Path(tempfile.mkdtemp(prefix="penstock-"))
        shared_memory = f"penstock-{secrets.token_hex(8)}-"
        try:
            options = self._options if delay_ms is None else _with_queue_delay(self._options, runtime, delay_ms)
            self._process = self._launch(options, runtime, shared_memory)
        except PenstockError:
            shutil.rmtree(runtime, ignore_errors=True)
            raise
        self._guard = _start_guard(self._process.pid, runtime, _SHARED_MEMORY / shared_memory)
        self._log = ServerLog(self._process.stdout, self._forward_log, hold_back=not self._verbose)

    def _launch(self, options: ServerOptions, runtime: Path, shared_memory: str) -> subprocess.Popen[str]:
        try:
            return subprocess.Popen(
                launch_command(self._install, options, self.ports, shared_memory),
                cwd=working_directory(runtime),
                env=launch_environment(self._install, options, runtime, patience_library()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise ServerError(f"{self._install.executable} cannot be started: {error.strerror}") from error

    def wait_ready(self, timeout_s: float = 600.0, is_cancelled: Callable[[], bool] = lambda: False) -> bool:
        """Returns True once every model is loaded, False once `is_cancelled` says so.

        Raises ServerError with the models' own words where the server has ended, or is not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        while not is_cancelled():
            if self.has_ended():
                raise ServerError(f"the server did not start: {self.end_reason()}")
            if self._is_ready():
                self._log.release()
                return True
            if time.monotonic() > deadline:
                raise ServerError(f"the server is not ready after {timeout_s:g} s: {self._log.last_words()}")
            time.sleep(_POLL_S)
        return False

    def has_ended(self) -> bool:
        """True when tritonserver's process is gone, or was never started."""
        return self._process is None or self._process.poll() is not None

    def end_reason(self) -> str:
        """Why a server that was started has ended by itself."""
        self._log.wait_until_closed(1.0)
        status = self._process.returncode
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        return f"{self._log.failure_reason()} ({how})"

    def stop(self, drain: bool = True) -> bool:
        """Ends all processes and removes their files; with `drain` live streams may go on for `drain_s` first.

        Returns False where the server was killed: not given a drain, or not gone after it. Triton waits for live
        sequences, and also for gRPC calls that a client leaves open.
        """
        if self._process is None:
            return True
        if drain and not self.has_ended():
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self._options.drain_s + _EXIT_GRACE_S)
        was_clean = self.has_ended() and self._process.returncode == 0
        self.kill()
        if self._guard is not None:
            self._guard.stdin.close()
            self._guard.wait()
        self._process.wait()
        self._process = self._guard = None
        return was_clean

    def kill(self) -> None:
        """Ends all processes at once. A signal handler may call it while `stop` waits for the drain."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def __enter__(self) -> "TritonServer":
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop(drain=False)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _is_ready(self) -> bool:
        """Triton opens the port of its metrics after that of HTTP, and calls itself ready meanwhile."""
        return _answers(self.ports.http, "/v2/health/ready") and _answers(self.ports.metrics, "/metrics")


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=1.0)
    with contextlib.closing(connection):
        try:
            connection.request("GET", path)
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False


def _start_guard(process_group: int, runtime: Path, shared_memory: Path) -> subprocess.Popen[bytes]:
    """A shell that does nothing but wait for our end. A death signal (prctl) would follow the thread, not the process,
    and would leave the models' processes and files behind."""
    return subprocess.Popen(
        ["/bin/sh", "-c", _GUARD_SCRIPT, "sh", str(process_group), runtime, shared_memory],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def _with_queue_delay(options: ServerOptions, runtime: Path, delay_ms: int) -> ServerOptions:
    """The same with a copy of the models in the runtime directory."""
    try:
        models = copy_with_queue_delay(options.model_repository, runtime / "models", delay_ms)
    except (OSError, ValueError) as error:
        raise ServerError(f"{runtime}: the models cannot be copied there: {error}") from error
    return replace(options, model_repository=models)
