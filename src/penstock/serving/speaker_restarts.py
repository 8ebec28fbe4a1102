"""Loads the model `speakers` again when its process is lost. The server, its other models and their streams go on.

Until a lost model is unloaded, each of its requests fails after a second; then at once.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import psutil

from penstock.serving.drain import attach_table
from penstock.serving.launch import LOADING_HEADER
from penstock.serving.model_repository import SPEAKERS
from penstock.serving.server_log import end_of
from penstock.serving.watchdog import POLL_S, ModelEnds, ProcessWatch, find_model_processes

if TYPE_CHECKING:
    from penstock.serving.server import TritonServer
    from penstock.serving.supervisor import Backoff

STOPPED_LIMIT_S = 0.5
"""A process that is stopped for longer is killed: if it went on after a second, Triton could end by SIGABRT."""
_CONTROL_LIMIT_S = 600.0
_JOIN_S = 0.5


class SpeakerRestarts:
    """Watches `speakers` in a thread while a server runs and while it drains. Use it as a context manager."""

    def __init__(self, server: "TritonServer", backoff: "Backoff", say: Callable[..., object], stop: threading.Event):
        """say: as of `Console`; stop: set before the server drains, after which nothing is loaded."""
        self._server, self._address = server.running, server.url(server.ports.grpc)
        self._metadata = [(f"triton-grpc-protocol-{LOADING_HEADER}", self._server.loading_secret)]
        self._model = self._server.runtime.path / "models" / SPEAKERS
        self._table = attach_table(self._server.runtime.path)  # outlives the files
        self._backoff, self._say, self._stop = backoff, say, stop
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="speaker restarts", daemon=True)

    def __enter__(self) -> "SpeakerRestarts":
        if self._model.is_dir():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)  # one that waits for an answer ends with the server

    def _run(self) -> None:
        ready_s = time.monotonic()
        while lost := self._wait_for_loss():
            ready_for_s = time.monotonic() - ready_s
            while lost:
                wait_s = self._backoff.next_wait_s(ready_for_s)
                if self._stop.is_set() or self._is_server_over():
                    return
                if not self._model.is_dir():
                    lost, wait_s = f"{lost}; {self._model} was removed", None
                if wait_s is None:
                    self._say(f"{lost}; streams have no speakers until the server restarts", "error")
                    return
                what = f"{lost}; words go on without speakers; loading it again in {wait_s:g} s"
                self._say(what, "error", wait_s=wait_s)
                if self._stop.wait(wait_s):
                    return
                lost, ready_for_s = self._load(), 0.0
            ready_s = time.monotonic()
            self._say(f"model {SPEAKERS} is ready again")

    def _wait_for_loss(self) -> str | None:
        """The fault, once the model is unloaded; None where the server has ended."""
        models = find_model_processes(self._server.process.pid)
        found = {each: name for each, name in models.items() if name == SPEAKERS}
        watch = ProcessWatch(found, ModelEnds(self._server.process.pid), STOPPED_LIMIT_S)
        gone = None if found else f"model {SPEAKERS} has {end_of(SPEAKERS, self._server.log.ends())}"
        while not self._is_over.wait(POLL_S) and not self._is_server_over():
            if lost := gone or watch.lost_process():
                self._unload(found)
                return lost
        return None

    def _is_server_over(self) -> bool:
        return self._is_over.is_set() or self._server.process.poll() is not None

    def _unload(self, processes: Iterable[psutil.Process]) -> None:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()  # it may be stopped
        self._control("Unload")
        self._fail_streams()

    def _fail_streams(self) -> None:
        """Ends the streams with speakers, whose requests the process had: they never settle. Their clients go on."""
        if self._table is None:
            return
        board, ledger = self._table
        streams = zip(board.times_ns, board.generations, board.has_speakers, strict=True)
        for slot, (time_ns, generation, has_speakers) in enumerate(streams):
            if has_speakers and time_ns:
                ledger.fail(SPEAKERS, slot, generation)

    def _load(self) -> str | None:
        """Why it has failed; None once the model is ready."""
        self._fail_streams()  # those whose starts were on their way when it was unloaded
        self._server.log.ends = ModelEnds(self._server.process.pid).by_model
        error = self._control("Load")
        if error is None:
            return None
        reason = self._server.log.load_failure() or f"model {SPEAKERS} cannot be loaded: {' '.join(error.split())}"
        self._server.log.release()
        return reason

    def _control(self, verb: str) -> str | None:
        """Why Triton did not `Load` or `Unload` the model; None if it did."""
        import grpc
        from tritonclient.grpc import service_pb2, service_pb2_grpc

        # Over HTTP, the clients whose connections have the same thread would wait for the load.
        with grpc.insecure_channel(self._address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            request = getattr(service_pb2, f"RepositoryModel{verb}Request")(model_name=SPEAKERS)
            start = getattr(stub, f"RepositoryModel{verb}").future
            call = start(request, metadata=self._metadata, timeout=_CONTROL_LIMIT_S)
            while not call.done():
                self._server.log.ends()
                time.sleep(POLL_S)
            return None if call.code() is grpc.StatusCode.OK else str(call.details())
