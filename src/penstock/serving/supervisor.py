"""Runs a server until a signal: reports its start and stop, watches it, and starts it again after a crash."""

import contextlib
import math
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.errors import PenstockError, PortError, ServerCrashError, ServerError
from penstock.reporting import memory_size
from penstock.runtime import available_memory_bytes
from penstock.serving.gateway_process import GatewayProcess
from penstock.serving.server import START_LIMIT_S, TritonServer
from penstock.serving.speaker_restarts import SpeakerRestarts
from penstock.serving.watchdog import Watchdog
from penstock_common.log_lines import Event, render

STABLE_S = 60.0
"""A server that has been ready for this long has recovered: the next crash is a first one again."""
MAX_RESTARTS = 10
"""Restarts in a row of which none was stable."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
_POLL_S = 0.1
_PROGRESS_S = 5.0
_GATEWAY_LIMIT_S, _GATEWAY_POLL_S = 60.0, 0.05


class Console:
    """The lines of `penstock serve` itself, in the form of the models' log."""

    def __init__(self, log_format: str = "text"):
        self._format = log_format

    def say(self, message: str, level: str = "info", **fields: Any) -> None:
        """Prints one line, a warning or an error to stderr. The fields appear in JSON only: the message has them."""
        shown = fields if self._format == "json" else {}
        line = render(Event(level, "server", message, shown, time.time()), self._format)
        with contextlib.suppress(OSError):  # a full disk, or a reader that has gone: streams must not end with it
            print(line, file=sys.stdout if level == "info" else sys.stderr, flush=True)


class Backoff:
    """Wait before a restart: 1 s, then twice as long each time up to a minute."""

    def __init__(self) -> None:
        self.restarts = 0
        """Restarts since the server was stable."""

    def next_wait_s(self, ready_s: float) -> float | None:
        """The wait after a crash of a server that was ready for `ready_s`; None after `MAX_RESTARTS` in a row."""
        if ready_s >= STABLE_S:
            self.restarts = 0
        if self.restarts == MAX_RESTARTS:
            return None
        self.restarts += 1
        return min(_FIRST_WAIT_S * 2 ** (self.restarts - 1), _LONGEST_WAIT_S)


def serve_until_signal(
    server: TritonServer,
    console: Console,
    drain_s: int,
    restarts: bool = False,
    gateway: GatewayProcess | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT; a further signal kills the server. `gateway` is stopped at each signal.

    A server that does not start raises ServerError. So does a crash unless `restarts`: then the server is started
    again on the same ports, but where a free choice has been lost, and only `MAX_RESTARTS` crashes in a row raise.
    """
    backoff, has_crashed = Backoff(), False
    with _stop_signals(server, gateway.stop if gateway else None) as stop:
        while not stop.is_set():
            run = _ServerRun(server, console, drain_s, gateway)
            try:
                return run.until(stop)
            except (ServerError, PortError) as error:
                if stop.is_set():  # a second signal has killed the server
                    break
                has_crashed |= run.ready_since_s is not None or isinstance(error, ServerCrashError)
                wait_s = backoff.next_wait_s(run.ready_s()) if restarts and has_crashed else None
                if wait_s is None:
                    raise
                console.say(f"{error}; starting again in {wait_s:g} s", "error", code=error.code.name, wait_s=wait_s)
                stop.wait(wait_s)
    console.say("stopped")


class _ServerRun:
    """One start of the server."""

    def __init__(self, server: TritonServer, console: Console, drain_s: int, gateway: GatewayProcess | None):
        self._server, self._console, self._drain_s, self._gateway = server, console, drain_s, gateway
        self.ready_since_s: float | None = None

    def ready_s(self) -> float:
        """Seconds since the server got ready; 0 if it did not."""
        return 0.0 if self.ready_since_s is None else time.monotonic() - self.ready_since_s

    def until(self, stop: threading.Event) -> None:
        """Returns after a stop; ServerError if the server does not start, ends, or loses a model but `speakers`."""
        server, started_s = self._server, time.monotonic()
        with contextlib.ExitStack() as beside:
            try:
                if server.start_until_ready(stop.is_set, self._progress(started_s), self._report_retry):
                    self.ready_since_s = time.monotonic()
                    beside.enter_context(SpeakerRestarts(server, Backoff(), self._console.say, stop))
                    self._wait_for_gateway(stop)
                    self._watch(stop, start_s=time.monotonic() - started_s)
            except BaseException:
                beside.close()
                server.stop(drain=False)
                raise
            streams, cut_off = server.stop(drain=self.ready_since_s is not None, on_wait=self._report_wait)
        ends = {"ended or moved": streams - cut_off, "cut off": cut_off}
        summary = ", ".join(f"{_streams(count)} {how}" for how, count in ends.items() if count)
        self._console.say(f"stopped; {summary}" if summary else "stopped", streams=streams, cut_off=cut_off)

    def _wait_for_gateway(self, stop: threading.Event) -> None:
        """Returns when it is ready, after a stop, or after a minute, with a warning."""
        deadline_s = time.monotonic() + _GATEWAY_LIMIT_S
        while self._gateway and not stop.is_set() and not self._server.has_ended():
            if self._gateway.is_ready():
                return
            if time.monotonic() > deadline_s:
                self._console.say(f"the gateway is not ready after {_GATEWAY_LIMIT_S:g} s", "warning")
                return
            stop.wait(_GATEWAY_POLL_S)

    def _progress(self, started_s: float) -> Callable[[], None]:
        due_s = started_s + _PROGRESS_S

        def report() -> None:
            nonlocal due_s
            if time.monotonic() >= due_s:
                elapsed_s = round(time.monotonic() - started_s)
                self._console.say(
                    f"still starting after {elapsed_s} s (limit {START_LIMIT_S:g} s), "
                    f"{memory_size(available_memory_bytes())} of memory are free",
                    elapsed_s=elapsed_s,
                )
                due_s += _PROGRESS_S

        return report

    def _announce(self, start_s: float) -> None:
        ports, url = self._server.ports, self._server.url
        urls = f"gRPC {url(ports.grpc)}, HTTP {url(ports.http)}, metrics http://{url(ports.metrics)}/metrics"
        self._console.say(f"ready after {math.ceil(start_s)} s: {urls}", start_s=start_s, **ports._asdict())
        for line in self._gateway.invitation() if self._gateway else ():
            self._console.say(line)

    def _watch(self, stop: threading.Event, start_s: float) -> None:
        """Waits for `stop`; ServerError if the server ends, or loses a model, without which it cannot drain."""
        server = self._server
        with Watchdog(server.process_id, server.url(server.ports.http)) as watch:
            self._announce(start_s)  # only now: a model that is lost from here on is reported as lost
            while not stop.wait(_POLL_S):
                if server.has_ended():
                    raise ServerError(f"the server exited unexpectedly: {server.end_reason()}")
                if watch.loss:
                    raise ServerError(f"the server was stopped: {watch.loss}{server.last_stderr_line()}")
                for warning in server.check_files():
                    self._console.say(warning, "warning")

    def _report_retry(self, error: PenstockError) -> None:
        self._console.say(f"{error}; starting again", "warning", code=error.code.name)

    def _report_wait(self, streams: int) -> None:
        wait = f"waiting up to {self._drain_s} s for {_streams(streams)}"
        self._console.say(f"{wait}; Ctrl-C again to stop now", streams=streams)


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"


@contextmanager
def _stop_signals(server: TritonServer, on_stop: Callable[[], None] | None = None) -> Iterator[threading.Event]:
    """Sets the event at the first SIGTERM or SIGINT; a further one kills the server."""
    stop, received = threading.Event(), queue.SimpleQueue[bool]()

    def act() -> None:
        while received.get():
            if stop.is_set():
                server.kill()
            stop.set()
            if on_stop is not None:
                on_stop()

    # A handler interrupts the main thread anywhere, also while it holds the event's lock in `wait`: there `set` would
    # wait for ever. `SimpleQueue.put` is reentrant.
    acting = threading.Thread(target=act, name="signals", daemon=True)
    acting.start()
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = {number: signal.signal(number, lambda *_: received.put(True)) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        received.put(False)
        acting.join()
