"""Locust's side of the load test: its user, its shape and its events. `python -m loadtest` starts Locust with it.

    locust -f loadtest/locustfile.py --url localhost:8001 --streams 8 --headless

works as well, against a running server. docs/load_testing.md documents the measurements.
"""

import logging
import signal
import sys

import gevent
import gevent.event
import locust.runners
from locust import LoadTestShape, User, events, task
from locust.env import Environment
from locust.exception import StopUser

from loadtest.load_test import LoadTest
from loadtest.options import ON_WEB_PAGE, Plan, add_arguments, read_plan
from loadtest.player import ANSWER_WAIT_S
from penstock.errors import PenstockError
from penstock.serving.launch import LOOPBACK

# Locust drops a worker after three seconds without a heartbeat, which happens on a fully loaded machine.
locust.runners.HEARTBEAT_LIVENESS = 60
_log = logging.getLogger("loadtest.locustfile")  # Locust names the module otherwise
_STOP_TIMEOUT_S = ANSWER_WAIT_S + 3.0
_test: LoadTest | None = None  # of this process
_is_prepared = gevent.event.Event()


class StreamUser(User):
    """An endless live stream: one recording after another, each an utterance with its own sequence."""

    def __init__(self, environment: Environment):
        super().__init__(environment)
        self._stopping = gevent.event.Event()

    def stop(self, force: bool = False) -> bool:
        """Ends the running task, which Locust would leave alone."""
        self._stopping.set()
        return super().stop(force)

    @task
    def stream(self) -> None:
        """Has the streaming process play until the user is stopped."""
        streaming = _test.streaming
        if streaming is None:
            raise StopUser  # the options are invalid
        number = streaming.begin_user(_test.plan.stagger_s)
        self._stopping.wait()
        streaming.end_user(number)


class PlannedShape(LoadTestShape):
    """Follows the plan of --streams and --minutes."""

    _plan: Plan | None = None

    def reset_time(self) -> None:
        """Reads the plan when a test begins; changes on the web page apply to the next test."""
        super().reset_time()
        try:
            self._plan = read_plan(self.runner.environment.parsed_options)
        except ValueError as error:
            _log.error("%s", error)
            self._plan = None

    def tick(self) -> tuple[int, float] | None:
        """Returns users and spawn rate; Locust calls it once per second."""
        if self._plan and self.get_run_time() < self._plan.duration_s:
            streams = self._plan.streams_at(self.get_run_time())
            return streams, float(streams)
        self.runner.stop()  # Locust itself would not wait for the workers' last records
        return None


@events.init_command_line_parser.add_listener
def _add_options(parser) -> None:
    add_arguments(parser)
    parser.set_defaults(web_host=LOOPBACK, master_bind_host=LOOPBACK)  # Locust's default is all interfaces, no login
    for action in parser._actions:  # Locust's own mark for web options does not reach the arguments of a group
        if action.dest in ON_WEB_PAGE:
            action.include_in_web_ui = True
            action.is_secret = action.is_required = action.is_multiple = False


def _end_by_sigterm() -> None:
    """Treats SIGTERM as Ctrl-C, upon which Locust ends the test and the report is written.

    Only once: a second signal must not interrupt that. In a greenlet of its own, from which gevent passes the exception
    to Locust's main greenlet; a Python handler would raise in the greenlet that happens to run.
    """
    ends: list[bool] = []

    def end() -> None:
        if not ends:
            ends.append(True)
            raise KeyboardInterrupt

    gevent.signal_handler(signal.SIGTERM, end)


def _speak_plainly() -> None:
    """On stderr: this package's lines as they are, and of Locust what is wrong; its tables are in its page."""
    for name in ("locust", "locust.stats_logger"):
        logging.getLogger(name).setLevel(logging.WARNING)
    own, lines = logging.getLogger("loadtest"), logging.StreamHandler()
    own.propagate = False
    own.setLevel(logging.INFO)
    own.addHandler(lines)


@events.init.add_listener
def _prepare(environment: Environment, **_: object) -> None:
    global _test
    environment.stop_timeout = _STOP_TIMEOUT_S
    if environment.parsed_options and environment.parsed_options.headless:
        _speak_plainly()
        _end_by_sigterm()
    try:
        _test = LoadTest(environment)
    except (PenstockError, ValueError) as error:
        _log.error("%s", error)
        sys.exit(2)
    _is_prepared.set()


@events.test_start.add_listener
def _start(environment: Environment, **_: object) -> None:
    _is_prepared.wait()  # the master may start a worker that is still preparing
    try:
        _test.start()
    except (PenstockError, ValueError) as error:  # the web page lets options be changed
        _log.error("%s", error)
        gevent.spawn(environment.runner.stop)


@events.test_stopping.add_listener
def _end_measuring(**_: object) -> None:
    _test.end_measuring()


@events.test_stop.add_listener
def _stop(**_: object) -> None:
    _test.stop()
