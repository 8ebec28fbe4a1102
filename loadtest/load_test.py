"""LoadTest: one Locust process's part of a test, from its start to the report. Called by the Locust file's events."""

import argparse
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import gevent
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadtest.options import Plan, Window, read_plan, request_samples
from loadtest.player import COMPLETE, REJECTED, Utterance, now_s
from loadtest.report import REPORT, in_words, make_folder, report_document, window_lines, write_report
from loadtest.streaming_handle import StreamingHandle
from loadtest.summary import Conditions, Snapshot, chunk_duration_s, summarize, take_snapshot
from penstock.errors import RunError
from penstock.evaluation.manifest import read_manifest
from penstock.runtime import core_count
from penstock.transcription.progress import duration
from penstock_client import SAMPLE_RATE_HZ
from penstock_client.cli.arguments import read_options

_UTTERANCES = "penstock_utterances"
_READY = "penstock_ready"
_SEND_EVERY_S = 2.0
_MAX_WAIT_S = 10.0
_MAX_START_S = 60.0
_QUIT_DELAY_S = 1.0  # for Locust's last message to the master
_SAY_EVERY_S, _SAY_EVERY_SHARE = 15.0, 0.05
_log = logging.getLogger(__name__)

Measured = tuple[Window, Snapshot, Snapshot]


class Collector:
    """The records of one process: a worker sends them to the master, other processes keep them."""

    def __init__(self, environment: Environment):
        self._runner = environment.runner
        self._utterances: list[Utterance] = []
        self._finished_workers: set[str] = set()
        self._ready_workers: set[str] = set()
        self.lost = ""
        """Why a process that plays streams is gone; empty where none is."""
        self.is_worker = isinstance(self._runner, WorkerRunner)
        """True where another process writes the report."""
        self.is_master = isinstance(self._runner, MasterRunner)
        """True where users run in other processes alone."""
        if self.is_master:
            self._runner.register_message(_UTTERANCES, self._receive)
            self._runner.register_message(_READY, lambda environment, msg, **_: self._ready_workers.add(msg.node_id))
        if self.is_worker:
            gevent.spawn(self._send_periodically)

    def await_workers(self) -> None:
        """Waits for the workers, so that no window begins before its streams. Raises RunError after a time-out."""
        if not self._have_all(self._ready_workers, _MAX_START_S):
            raise RunError(f"a process of the load generator is not ready after {_MAX_START_S:g} s")

    def clear(self) -> None:
        """Drops the records of the previous test."""
        self._utterances = []
        self._finished_workers = set()

    def add(self, utterance: Utterance) -> None:
        """Keeps the record of an utterance that has ended."""
        self._utterances.append(utterance)

    def send(self, is_last: bool = False) -> None:
        """Sends a worker's records to the master; with `is_last` they are the last of this test."""
        if not self.is_worker or not (self._utterances or is_last):
            return
        messages = [utterance.to_message() for utterance in self._utterances]
        self._utterances = []
        self._runner.send_message(_UTTERANCES, {"utterances": messages, "is_last": is_last, "lost": self.lost})

    def collected(self) -> list[Utterance]:
        """Returns all records of the test that has ended, after a wait for the workers' last ones."""
        if not self._have_all(self._finished_workers, _MAX_WAIT_S):  # for example where a signal ended the test
            _log.warning("the last records of a load generator process are missing: the earlier ones are used")
        return self._utterances

    def _have_all(self, workers: set[str], wait_s: float) -> bool:
        """Whether `workers` holds all that the master knows, within `wait_s`; it drops those that have ended."""
        if not self.is_master:
            return True
        with gevent.Timeout(wait_s, False):
            while not workers.issuperset(self._runner.clients.keys()):
                gevent.sleep(0.05)
            return True
        return False

    def _receive(self, environment: Environment, msg, **_: object) -> None:
        self.lost = self.lost or msg.data["lost"]
        self._utterances += map(Utterance.from_message, msg.data["utterances"])
        if msg.data["is_last"]:
            self._finished_workers.add(msg.node_id)

    def _send_periodically(self) -> None:
        while True:
            gevent.sleep(_SEND_EVERY_S)
            self.send()


class Watch:
    """Takes snapshots at the borders of a plan's windows. The test begins when this is created."""

    def __init__(self, plan: Plan, probe: Callable[[], Snapshot]):
        self.began_s = now_s()
        self._measured: list[Measured] = []
        self._probe, self._duration_s = probe, plan.duration_s
        self._open: tuple[Window, Snapshot] | None = None
        self._greenlet = gevent.spawn(self._follow, plan)

    def finish(self) -> list[Measured]:
        """Returns the windows with the snapshots at their begin and end; a window that is open ends now."""
        self._greenlet.kill()
        if self._open:
            window, before = self._open
            end_s = now_s() - self.began_s
            self._measured.append((replace(window, end_s=min(window.end_s, end_s)), before, self._snapshot()))
            self._open = None
        return self._measured

    def _follow(self, plan: Plan) -> None:
        for window in plan.windows:
            self._wait_until(window.begin_s, f"starting {in_words(window.streams)}")
            before = self._snapshot()
            self._open = (window, before)
            self._wait_until(window.end_s, f"measuring {in_words(window.streams)}")
            after = self._snapshot()
            self._open = None
            self._measured.append((window, before, after))

    def _wait_until(self, moment_s: float, what: str) -> None:
        """Says what goes on, and again after a while."""
        while (elapsed_s := now_s() - self.began_s) < moment_s:
            _log.info("[%s of %s] %s", duration(elapsed_s), duration(self._duration_s), what)
            gevent.sleep(min(moment_s - elapsed_s, max(_SAY_EVERY_S, _SAY_EVERY_SHARE * self._duration_s)))

    def _snapshot(self) -> Snapshot:
        """Reads server and machine in a thread: counting the memory of large processes would delay the users."""
        return gevent.get_hub().threadpool.apply(self._probe)


class LoadTest:
    """The constructor checks the options: PenstockError or ValueError for invalid ones."""

    def __init__(self, environment: Environment):
        self._environment = environment
        self._collector = Collector(environment)
        self._watch: Watch | None = None
        self._began_s = 0.0
        self._measured: list[Measured] = []
        self._handle = None if self._collector.is_master else StreamingHandle(self._record, self._lose)
        self.plan: Plan = self._read_options()
        self.streaming: StreamingHandle | None = None
        """While a test runs, in the processes that generate load."""
        if self._collector.is_worker:  # the master counts a worker as soon as it is connected
            environment.runner.send_message(_READY)

    def start(self) -> None:
        """Starts a test, maybe with other options, from the web page. Raises as the constructor does."""
        self._collector.clear()
        self._measured = []  # a test that cannot begin must not report the figures of the one before it
        self.plan = self._read_options()
        self.streaming = self._handle
        if not self._collector.is_worker:
            self._collector.await_workers()
            self._environment.shape_class.reset_time()  # Locust's clock has started before that
            options = self._options
            probe = partial(take_snapshot, options.metrics_url or None, options.server_pid, options.gateway_pid)
            self._watch = Watch(self.plan, probe)
            self._began_s = self._watch.began_s

    def end_measuring(self) -> None:
        """Ends the last window, before the users stop."""
        if self._watch:
            self._measured, self._watch = self._watch.finish(), None

    def stop(self) -> None:
        """Sends the records to the master or writes the report, when the users have stopped."""
        if self.streaming:
            self.streaming.close()
            self.streaming = None
        if self._collector.is_worker:
            self._collector.send(is_last=True)
            if self._options.headless:  # Locust's master drops a worker that has stopped, and never ends it
                gevent.spawn_later(_QUIT_DELAY_S, self._environment.runner.quit)
        else:
            self._report(self._collector.collected())

    @property
    def _options(self) -> argparse.Namespace:
        return self._environment.parsed_options

    def _read_options(self) -> Plan:
        request_samples(self._options.request_ms, SAMPLE_RATE_HZ)
        read_options(self._options)
        if self._handle:
            process = max(0, self._environment.runner.worker_index)  # -1 where there is one process
            self._handle.prepare(self._options, process)  # reads the recordings too: before the test, not in it
        if not self._collector.is_worker:  # what the report needs, before the test and not after it
            read_manifest(Path(self._options.recordings))
            make_folder(Path(self._options.out))
        return read_plan(self._options)

    def _lose(self, problem: str) -> None:
        """The test is void: the records of the lost process are missing."""
        _log.error("%s", problem)
        self._collector.lost = problem

    def _record(self, utterance: Utterance) -> None:
        """Keeps it, and feeds Locust's own tables and web page, which the report does not use."""
        self._collector.add(utterance)
        fire = partial(self._environment.events.request.fire, request_type=self._options.protocol, response_length=0)
        if utterance.outcome == REJECTED:
            fire(name="start", response_time=1000 * utterance.rejected_after_s, exception=RuntimeError("rejected"))
        elif utterance.error:
            fire(name="stream", response_time=0.0, exception=RuntimeError(utterance.error.partition(":")[0]))
        for request in utterance.requests[utterance.requests["completes_chunk"]]:
            latency_ms = 1000 * float(request["answered_s"] - request["deadline_s"])
            is_final = request["is_last"] and utterance.outcome == COMPLETE
            fire(name="final" if is_final else "chunk", response_time=latency_ms, exception=None)

    def _report(self, utterances: list[Utterance]) -> None:
        if self._collector.lost:
            _log.error("no report: %s", self._collector.lost)
            return
        if not self._measured:
            _log.error("no report: the test ended before its first measurement began")
            return
        options, setup = self._options, self._options.setup
        chunk_s = options.chunk_ms / 1000 or chunk_duration_s([utterance.requests for utterance in utterances])
        if not chunk_s:
            _log.error("no report: the model's chunk is not known, no utterance had two chunks; give --chunk-ms")
            return
        references = [utterance.reference for utterance in read_manifest(Path(options.recordings))]
        conditions = Conditions(references, chunk_s, core_count())
        windows = [
            summarize(window, self._began_s, utterances, before, after, conditions)
            for window, before, after in self._measured
        ]
        document = report_document(vars(options), setup, windows)
        path = Path(options.out) / REPORT
        write_report(path, document)
        for line in [line for window in windows for line in window_lines(window)]:
            _log.info("%s", line)
        _log.info("wrote %s", ", ".join(map(str, sorted(path.parent.glob(f"{path.stem}.*")))))
