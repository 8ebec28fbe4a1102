"""A session shared by the threads that use a stream and the one that talks to the network. No network protocol."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock_client.errors import ClientError, ServerFullError, StreamId
from penstock_client.protocol import Request, Result
from penstock_client.transport.session import Session


class Channel:
    """A `Session` with a lock and with waiting. Thread-safe."""

    def __init__(
        self,
        stream_id: StreamId,
        url: str,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        wait_for_slot_s: float = 0.0,
    ):
        self._session = Session(stream_id, url, timeout_s, clock, wait_for_slot_s)
        self._lock = threading.Lock()
        self._results_ready = threading.Condition(self._lock)
        """Wakes the threads that use the stream."""
        self._send_ready = threading.Condition(self._lock)
        """Wakes the thread that talks to the network, but not for each reply."""

    @contextmanager
    def update(self) -> Iterator[Session]:
        """Locks the session for reads and changes, then wakes the threads that wait for it."""
        with self._lock:
            yield self._session
            self._results_ready.notify_all()
            if self._session.has_request or self._session.is_over:
                self._send_ready.notify_all()

    @property
    def is_complete(self) -> bool:
        """True once every request up to the last is answered and every result was received."""
        with self._lock:
            return self._session.is_complete

    def send(self, request: Request) -> None:
        """Enqueues a request. Blocks while too much audio is unanswered, except for the stream's last request.

        Raises the stream's failure, if there is one.
        """
        sent_s = self._session.now_s()
        with self.update() as session:
            self._wait_until(lambda: session.has_room(request), math.inf)
            session.enqueue(request, sent_s)

    def receive(self, wait_s: float | None) -> Result | None:
        """The next result; None if there is none within `wait_s`, or if the stream is complete.

        With `wait_s` None it waits without a limit. Raises the stream's failure after the results before it.
        """
        with self._lock:
            self._wait_until(lambda: self._session.has_result, math.inf if wait_s is None else wait_s)
            return self._session.next_result()

    def cancel(self) -> None:
        """Drops what has not been sent; the stream's end is sent in its place. Does not wait."""
        with self.update() as session:
            session.cancel()

    def wait_for_request(self) -> bool:
        """Waits for a request to send; False once there will be none."""
        with self._lock:
            self._send_ready.wait_for(lambda: self._session.has_request or self._session.is_over)
            return self._session.has_request

    def requests(self) -> Iterator[Request]:
        """Each request once it is to be sent, until the last."""
        while self.wait_for_request():
            with self._lock:
                request = self._session.next_request()
            if request is not None:  # it may have been dropped meanwhile
                yield request

    def pause(self, pause_s: float) -> bool:
        """Waits before the next attempt to connect; returns True at once when no request will be sent any more."""
        with self._lock:
            return self._send_ready.wait_for(lambda: self._session.is_over, pause_s)

    def fail_or_wait_for_slot(self, error: ClientError) -> None:
        """Fails the stream; but where the server is full, its start is enqueued again after a pause."""
        with self._lock:
            pause_s = self._session.slot_pause_s() if isinstance(error, ServerFullError) else None
        is_over = pause_s is None or self.pause(pause_s)
        with self.update() as session:
            if is_over:
                session.fail(error)
            else:
                session.repeat_start()

    def _wait_until(self, is_met: Callable[[], bool], wait_s: float) -> None:
        """Returns when `is_met`, at a failure, or after `wait_s`. Needs the lock."""
        if is_met():
            return
        deadline_s = self._session.now_s() + wait_s
        while not is_met() and (limit_s := self._session.seconds_to_wait(deadline_s)) > 0:
            self._results_ready.wait(None if limit_s == math.inf else limit_s)
