"""Starts, monitors and stops tritonserver with a model repository."""

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from http.client import HTTPConnection
from typing import NamedTuple

import psutil

from penstock.errors import PenstockError, PortError, ServerCrashError, ServerError
from penstock.runtime import describe_end, memory_kills
from penstock.serving.drain import Drained, Table, attach_table, drain_streams
from penstock.serving.health import answers, probe
from penstock.serving.launch import (
    Ports,
    ServerOptions,
    claim_ports,
    has_gpu,
    hide_argument,
    launch_command,
    launch_environment,
    working_directory,
)
from penstock.serving.model_repository import copy_models
from penstock.serving.runtime_directory import SHARED_MEMORY, RuntimeDirectory
from penstock.serving.server_log import ServerLog
from penstock.serving.settings import ServeOptions
from penstock.serving.triton_install import TritonInstall
from penstock.serving.watchdog import ModelEnds
from penstock_common.listening import local_host_port
from penstock_common.server_info import SERVER_ID

START_LIMIT_S = 600.0
"""A server that is not ready after this long has failed."""
_EXIT_GRACE_S = 5.0  # after the drain; Triton 2.51 takes 3.9 s to exit, and may hang when its drain has timed out
_POLL_S = 0.05
_CLOSED_S = 2.0
_STARTS = 3
_PROBE_S = 5.0


class TritonServer:
    """One tritonserver and its model processes, in their own process group.

    As a context manager, it starts the server, waits until it is ready, and stops it at the end. If this process ends
    before that, even by SIGKILL, a guard process kills the server and removes its files.
    """

    def __init__(
        self, install: TritonInstall, options: ServerOptions, forward_log: Callable[[str], object] | None = None
    ):
        """forward_log: called with each line of the server's log, as `penstock.serving.server_log` selects them."""
        self._install = install
        self._options = options
        self._forward_log = forward_log
        self._running: Running | None = None
        self._kills = 0
        self._is_hidden: bool | None = None
        self._table: Table | None = None
        self.ports = options.ports
        """The ports in use, once started; a further start uses the same."""

    def url(self, port: int) -> str:
        """ADDRESS:PORT from this machine."""
        return local_host_port(self._options.address, port)

    @property
    def process_id(self) -> int:
        """Id of tritonserver's process and of its process group; ServerError when not running."""
        return self.running.process.pid

    @property
    def running(self) -> "Running":
        """The server's processes and files; ServerError when not running."""
        if self._running is None:
            raise ServerError("the server is not running")
        return self._running

    def start(self) -> None:
        """Starts the processes. PenstockError for a port in use or a wrong setting comes before any process starts."""
        environment = ChainMap(dict(self._options.environment), os.environ)
        settings = ServeOptions.read(environment)
        self.ports, _ = claim_ports(self.ports, self._options.address)
        self._kills, loading_secret = memory_kills(), secrets.token_hex(32)
        try:
            with ExitStack() as on_error:
                runtime = RuntimeDirectory()
                on_error.callback(runtime.remove)
                options = self._options
                models = copy_models(
                    options.model_repository, runtime.path / "models", settings.queue_delay_ms,
                    {**options.information, SERVER_ID: secrets.token_hex(8)}, has_gpu(options), bool(settings.speakers),
                )  # fmt: skip
                process = self._launch(replace(options, model_repository=models), runtime, loading_secret)
                on_error.callback(process.wait)
                on_error.callback(os.killpg, process.pid, signal.SIGKILL)
                runtime.start_guard(process.pid)
                assert process.stdout is not None
                log = ServerLog(
                    process.stdout, self._forward_log, settings.log_format, settings.log_level, self._options.is_verbose
                )
                on_error.pop_all()
        except (OSError, RuntimeError, ValueError) as error:  # no memory, descriptors, processes or threads are left
            raise ServerError(f"the server, with files in {SHARED_MEMORY}, cannot be started: {error}") from error
        self._table, self._running = None, Running(process, log, runtime, loading_secret)

    def _launch(self, options: ServerOptions, runtime: RuntimeDirectory, loading_secret: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            launch_command(self._install, options, self.ports, f"{runtime.path.name}-", loading_secret),
            cwd=working_directory(runtime.path),
            env=launch_environment(self._install, options, runtime.path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            pass_fds=[runtime.lock],
        )

    def start_until_ready(
        self,
        is_cancelled: Callable[[], bool] = lambda: False,
        on_wait: Callable[[], object] = lambda: None,
        on_retry: Callable[[PenstockError], object] = lambda error: None,
    ) -> bool:
        """Does `start` and `wait_ready`. Starts again up to two times: after a crash, as Triton's Python backend may
        crash at any time, and on other free ports where another process has taken one.

        on_retry: called with the error before a further start.
        """
        for starts_left in reversed(range(_STARTS)):
            try:
                self.start()
                return self.wait_ready(is_cancelled=is_cancelled, on_wait=on_wait)
            except (PortError, ServerCrashError) as error:
                self.stop(drain=False)
                has_lost_port = isinstance(error, PortError)
                if not starts_left or is_cancelled() or (has_lost_port and 0 not in self._options.ports):
                    raise
                if has_lost_port:
                    self.ports = self._options.ports
                on_retry(error)
            except BaseException:
                self.stop(drain=False)
                raise
        raise AssertionError("the last start returns or raises")

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
        log, deadline = self.running.log, time.monotonic() + timeout_s
        ports, self._is_hidden = _PortWatch(self.ports), None
        log.ends = ModelEnds(self.process_id).by_model
        while not is_cancelled():
            log.ends()
            if self._is_hidden is None:
                self._is_hidden = hide_argument(self.process_id, self.running.loading_secret)
            if reason := log.load_failure():  # Triton ends only when the other models are loaded
                raise ServerError(f"the server did not start: {reason}")
            listening = _listening(self.process_id)
            if self.has_ended() or ports.have_closed(listening):
                raise self._start_error()
            if ports.are_open(listening) and self._is_ready():
                self._table = attach_table(self.running.runtime.path)
                self.running.runtime.note_files()
                log.release()
                return True
            if time.monotonic() > deadline:
                raise ServerError(f"the server is not ready after {timeout_s:g} s: {log.last_lines()}")
            on_wait()
            time.sleep(_POLL_S)
        return False

    def check_files(self) -> Iterator[str]:
        """Yields warnings about the server's secret, files and guard process, each once. Call it while it runs."""
        if self._is_hidden is False:
            self._is_hidden = True
            yield "other users of the machine can read the key of the interface that loads models"
        yield from self.running.runtime.check(self.process_id)

    def _start_error(self) -> ServerError | PortError:
        """Why the server has ended, or ends once clients have ended their calls. Raises PortError for a port in use."""
        process, log, *_ = self.running
        status, reason = process.poll(), self.end_reason() if self.has_ended() else log.failure_reason()
        self.kill()
        process.wait()
        message = f"the server did not start: {reason}"
        if status is not None and status < 0:
            return ServerCrashError(message)
        claim_ports(self.ports, self._options.address)
        return PortError(message) if "already in use" in reason else ServerError(message)  # the port may be free again

    def has_ended(self) -> bool:
        """True if tritonserver's process has ended or was never started."""
        return self._running is None or self._running.process.poll() is not None

    def end_reason(self) -> str:
        """Why a server that was started ended by itself."""
        process, log, *_ = self.running
        log.wait_until_closed(1.0)
        return f"{log.failure_reason()} ({describe_end(process.returncode, self._kills)})"

    def last_stderr_line(self) -> str:
        """`ServerLog.last_stderr_line`, for the end of a message; kills the server, so that no line is late."""
        self.kill()
        log = self.running.log
        log.wait_until_closed(5.0)
        return log.last_stderr_line()

    def stop(self, drain: bool = True, on_wait: Callable[[int], object] = lambda streams: None) -> Drained:
        """Ends all processes and removes their files; with `drain`, live streams have `drain_s` to end first.

        Connections that clients hold without a stream are closed. on_wait: see `drain_streams`.
        """
        drained = Drained()
        if self._running is None:
            return drained
        process, log, runtime, _ = self._running
        if drain and not self.has_ended():
            counted = drain_streams(self._table, self._options.drain_s, self.has_ended, on_wait)
            drained = counted or drained
            if drained.cut_off:
                probe(self.url(self.ports.http), _PROBE_S)  # the features model logs the streams
            log.hold_back()
            process.terminate()
            # Triton would wait for the sequences of streams that are left, and for gRPC calls that clients keep open.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_GRACE_S + (self._options.drain_s if counted is None else 0))
        log.hold_back()
        self.kill()
        process.wait()
        runtime.remove()
        log.wait_until_closed(5.0)
        deadline_s = time.monotonic() + 5.0  # a model may hang in a driver
        with contextlib.suppress(ChildProcessError):  # unless process 1 of a container inherits the models
            while time.monotonic() < deadline_s:
                if os.waitpid(-process.pid, os.WNOHANG) == (0, 0):
                    time.sleep(_POLL_S)
        self._running = None
        return drained

    def kill(self) -> None:
        """Kills all processes. Another thread may call it while `stop` waits for the drain."""
        if running := self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGKILL)

    def __enter__(self) -> "TritonServer":
        self.start_until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _is_ready(self) -> bool:
        """Checks two ports: Triton reports ready over HTTP before it opens the port of the metrics."""
        paths = {self.ports.http: "/v2/health/ready", self.ports.metrics: "/metrics"}
        return all(answers(HTTPConnection(self.url(port), timeout=1.0), path) for port, path in paths.items())


class Running(NamedTuple):
    """The processes and files of a server."""

    process: subprocess.Popen[str]
    log: ServerLog
    runtime: RuntimeDirectory
    loading_secret: str
    """See `launch_command`."""


class _PortWatch:
    """Follows which ports a server has opened; `listening`: as of `_listening`, now."""

    def __init__(self, ports: Ports):
        self._ports, self._opened, self._whole_s = set(ports), set[int](), time.monotonic()

    def are_open(self, listening: set[int] | None) -> bool:
        """True if all are, as far as can be seen. Else another process may answer there, which has taken a port."""
        return listening is None or listening >= self._ports

    def have_closed(self, listening: set[int] | None) -> bool:
        """True once one that was open has been closed for `_CLOSED_S`.

        The server ends because another one is taken, but waits for calls that clients hold.
        """
        if listening is None or listening >= self._opened:
            self._opened |= self._ports & (listening or set())
            self._whole_s = time.monotonic()
        return time.monotonic() - self._whole_s >= _CLOSED_S


def _listening(process_id: int) -> set[int] | None:
    """The ports that the process has opened; None if it does not let others see them."""
    try:
        sockets = psutil.Process(process_id).net_connections("tcp")
    except psutil.AccessDenied:
        return None
    except psutil.NoSuchProcess:
        return set()
    return {socket.laddr.port for socket in sockets if socket.status == psutil.CONN_LISTEN}
