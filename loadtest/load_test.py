"""LoadTest: one process's part of a test, from its start to the report. Called by the Locust file's events."""

import argparse
import logging
from functools import partial
from pathlib import Path

import gevent
from locust.env import Environment

from loadtest.gathering import Gathering
from loadtest.json_report import make_folder, read_setup, report_document, write_json
from loadtest.options import piece_samples, read_plan
from loadtest.pass_rule import chunk_duration_s
from loadtest.plan import Plan
from loadtest.probe import take_snapshot
from loadtest.records import COMPLETE, REFUSED, Utterance
from loadtest.streaming_handle import StreamingHandle
from loadtest.summary import Setting, summarise
from loadtest.verdict_lines import verdict_lines
from loadtest.watch import Measured, Watch
from penstock.evaluation.manifest import read_manifest
from penstock.reporting.hardware import core_count
from penstock_client import SAMPLE_RATE_HZ
from penstock_client.option_arguments import read_options

_FAREWELL_S = 1.0  # for Locust's last message to the master
_log = logging.getLogger(__name__)


class LoadTest:
    """Checks the options when it is made: PenstockError or ValueError for those that cannot be met."""

    def __init__(self, environment: Environment):
        self._environment = environment
        self._gathering = Gathering(environment)
        self._watch: Watch | None = None
        self._began_s = 0.0
        self._measured: list[Measured] = []
        self._handle = StreamingHandle(self._note, self._lose) if self._gathering.generates_load else None
        self.plan: Plan = self._read_options()
        self.streaming: StreamingHandle | None = None
        """While a test runs, in the processes that generate load."""
        self._gathering.report_ready()

    def start(self) -> None:
        """A new test, maybe with other options, from the web page. Raises as the constructor does."""
        self._gathering.clear()
        self._measured = []  # a test that cannot begin must not be told with the figures of the one before it
        self.plan = self._read_options()
        self.streaming = self._handle
        if not self._gathering.is_worker:
            self._gathering.await_workers()
            self._environment.shape_class.reset_time()  # Locust has begun to count before that
            probe = partial(take_snapshot, self._options.metrics_url or None, self._options.server_pid or None)
            self._watch = Watch(self.plan, probe)
            self._began_s = self._watch.began_s

    def end_measuring(self) -> None:
        """Before the users stop."""
        if self._watch:
            self._measured, self._watch = self._watch.finish(), None

    def stop(self) -> None:
        """When the users have stopped: sends the notes on, or writes the report."""
        if self.streaming:
            self.streaming.close()
            self.streaming = None
        if self._gathering.is_worker:
            self._gathering.send(is_last=True)
            if self._options.headless:  # Locust's master forgets a worker that has stopped, and never tells it to go
                gevent.spawn_later(_FAREWELL_S, self._environment.runner.quit)
        else:
            self._report(self._gathering.gathered())

    @property
    def _options(self) -> argparse.Namespace:
        return self._environment.parsed_options

    def _read_options(self) -> Plan:
        piece_samples(self._options.piece_ms, SAMPLE_RATE_HZ)
        read_options(self._options)
        if self._handle:
            process = max(0, self._environment.runner.worker_index)  # -1 where there is one process
            self._handle.prepare(self._options, process)  # reads the recordings too: before the test, not in it
        read_manifest(Path(self._options.recordings))
        if not self._gathering.is_worker:  # what the report needs, before the test and not after it
            read_setup(self._options.setup)
            make_folder(Path(self._options.out))
        return read_plan(self._options)

    def _note(self, utterance: Utterance) -> None:
        self._gathering.add(utterance)
        self._tell_locust(utterance)

    def _lose(self, problem: str) -> None:
        """The test proves nothing any more: what the lost process had to tell is missing."""
        _log.error("%s", problem)
        self._gathering.lost = problem

    def _tell_locust(self, utterance: Utterance) -> None:
        """For Locust's own tables and its web page; the report does not use them."""
        fire = partial(self._environment.events.request.fire, request_type=self._options.protocol, response_length=0)
        if utterance.outcome == REFUSED:
            fire(name="start", response_time=1000 * utterance.refused_after_s, exception=RuntimeError("refused"))
        elif utterance.error:
            fire(name="stream", response_time=0.0, exception=RuntimeError(utterance.error.partition(":")[0]))
        for piece in utterance.pieces[utterance.pieces["completes_chunk"]]:
            latency_ms = 1000 * float(piece["answered_s"] - piece["deadline_s"])
            is_final = piece["is_last"] and utterance.outcome == COMPLETE
            fire(name="final" if is_final else "chunk", response_time=latency_ms, exception=None)

    def _report(self, utterances: list[Utterance]) -> None:
        if self._gathering.lost:
            _log.error("no report: %s", self._gathering.lost)
            return
        if not self._measured:
            _log.error("the test ended before its first measurement began: no report")
            return
        options, setup = self._options, read_setup(self._options.setup)
        chunk_s = options.chunk_ms / 1000 or chunk_duration_s([utterance.pieces for utterance in utterances])
        if not chunk_s:
            _log.error("the server's chunk is not known: no utterance had two chunks; give --chunk-ms. No report")
            return
        references = [utterance.reference for utterance in read_manifest(Path(options.recordings))]
        setting = Setting(references, chunk_s, core_count(), setup.get("server", {}).get("threads", 1))
        windows = [
            summarise(window, self._began_s, utterances, before, after, setting)
            for window, before, after in self._measured
        ]
        document = report_document(vars(options), setup, windows)
        path = Path(options.out) / "loadtest.json"
        write_json(path, document)
        for window in windows:
            for line in verdict_lines(window):
                _log.info("%s", line)
        if not options.no_html:
            from loadtest.html_report import write_html  # here, so that a test runs where matplotlib is missing

            write_html(path.with_suffix(".html"), document)
        _log.info("wrote %s", path if options.no_html else f"{path} and {path.with_suffix('.html').name}")
