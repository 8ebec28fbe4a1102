"""The state of one stream: requests to be sent, results received, a failure. No network, threads or event loop.

`AsyncChannel` adds the waiting. The session counts the unanswered requests: time limits and the bound on
audio in flight follow from them. Where the reply to the stream's end has not its last result, it polls.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock_client.connection import retry_pauses_s
from penstock_client.errors import (
    ClientError,
    ConnectionLostError,
    ProtocolError,
    ReplyTimeoutError,
    ServerUnreachableError,
    StreamClosedError,
    StreamId,
    StreamNotOpenError,
)
from penstock_client.protocol import (
    END_REQUEST,
    POLL_REQUEST,
    SAMPLE_RATE_HZ,
    Request,
    Result,
    ResultOrder,
    ends_stream,
)

MAX_UNANSWERED_REQUESTS = 64
MAX_UNANSWERED_SAMPLES = 60 * SAMPLE_RATE_HZ
CLOSE_TIMEOUT_S = 1.0
"""Time for which closing an unfinished stream waits for the server to take its last request."""


class _Unanswered(NamedTuple):
    samples: int
    sent_s: float
    is_final: bool


class Session:
    """Both directions of one stream. Not thread-safe."""

    def __init__(
        self,
        stream_id: StreamId,
        url: str,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        wait_for_slot_s: float = 0.0,
    ):
        self.now_s = clock
        self.failure: ClientError | None = None
        """Why the stream ended early. The first failure stays."""
        self._stream_id = stream_id
        self._url = url
        self._timeout_s = timeout_s
        self._outgoing: deque[Request] = deque()
        self._unanswered: deque[_Unanswered] = deque()
        self._unanswered_samples = 0
        self._samples = 0
        """Samples of the stream, without those of requests that were dropped."""
        self._in_flight = 0
        """Requests that were sent and are unanswered, also after a failure."""
        self._results: deque[Result] = deque()
        self._order = ResultOrder()
        self._end_is_enqueued = self._start_is_sent = self._end_is_sent = False
        self._end_is_due = self._has_work_left = self._has_rejection = False
        """The reply to the end is still to come; or it has come, and the stream's last result has not."""
        self._is_connected = self._has_replies = False
        self._cancelled_at_s: float | None = None
        self._slot_pauses_s = retry_pauses_s(wait_for_slot_s)
        self._waits_for_slot = wait_for_slot_s > 0
        self._is_rejected = False
        self._held_start: Request | None = None
        """The first request, until it is answered: with `wait_for_slot_s` nothing is sent after it before."""
        self._last_activity_s = clock()

    @property
    def is_complete(self) -> bool:
        """True once every request up to the last is answered and every result was taken."""
        return self._is_answered and not self._results

    @property
    def has_result(self) -> bool:
        """True where `next_result` need not wait: it has a result, the stream is answered, or it has failed."""
        return bool(self._results) or self._is_answered or self.failure is not None

    @property
    def has_request(self) -> bool:
        """True where `next_request` has a request."""
        return bool(self._outgoing) and (self._held_start is None or self.failure is not None)

    @property
    def is_over(self) -> bool:
        """True once no further request will be sent."""
        is_held = self._held_start is not None and self.failure is None
        if self._outgoing or is_held:
            return False
        if self._is_cancelled:
            return not self._end_is_due
        return self._is_answered or (self.failure is not None and self._end_is_sent and not self._has_work_left)

    @property
    def is_unsent(self) -> bool:
        """True as long as the server cannot have received any request of this stream."""
        return not (self._is_connected and self._start_is_sent)

    @property
    def is_waiting_for_slot(self) -> bool:
        """True once the server was full or stopping, until it takes the stream: the start is then sent again."""
        return self._is_rejected and not self._has_replies and self.failure is None

    @property
    def is_unreached(self) -> bool:
        """True where a lost connection means that no Penstock server was reached; False once it is over or answered."""
        return not self._has_replies and self.failure is None

    @property
    def close_timeout_s(self) -> float:
        """Time for which closing may still wait for the server to take the stream's last request."""
        if self.is_unsent:
            return 0.0
        if self._cancelled_at_s is None:
            return CLOSE_TIMEOUT_S
        return max(0.0, self._cancelled_at_s + CLOSE_TIMEOUT_S - self.now_s())

    def has_room(self, request: Request) -> bool:
        """True where the request may be enqueued: not too much is unanswered, or it is the stream's last."""
        if not self._unanswered or request.is_end:
            return True
        samples = self._unanswered_samples + request.samples
        return len(self._unanswered) < MAX_UNANSWERED_REQUESTS and samples <= MAX_UNANSWERED_SAMPLES

    def enqueue(self, request: Request, sent_s: float) -> None:
        """Enqueues a request; its round trip counts from `sent_s`. Raises the stream's failure, if there is one."""
        if self.failure:
            raise self.failure
        self._end_is_enqueued |= request.is_end
        if not self._unanswered:
            self._last_activity_s = self.now_s()
        self._unanswered.append(_Unanswered(request.samples, sent_s, request.is_final))
        self._unanswered_samples += request.samples
        self._samples += request.samples
        self._outgoing.append(request)

    def connected(self) -> None:
        """There is a connection: the server may receive what is sent from now on, so it is never sent again.

        Over HTTP a request is taken before it has a connection, and the stream may be cancelled in between: the
        stream's last request is then enqueued here.
        """
        if not self._is_connected:
            self._last_activity_s = self.now_s()
        self._is_connected = True
        if self._is_cancelled and self._is_open_on_server and not self._outgoing:
            self._outgoing.append(END_REQUEST)

    def next_request(self) -> Request | None:
        """The request to send now, or None. It counts as sent and is not returned again."""
        if not self.has_request:
            return None
        request = self._outgoing.popleft()
        if request.is_start and self._waits_for_slot:
            self._held_start = request
        self._in_flight += 1
        self._start_is_sent |= request.is_start
        if request.is_end:  # a second one drops the work that is left
            self._end_is_due, self._has_work_left = not self._end_is_sent, False
            self._end_is_sent = True
        return request

    def deliver(self, *results: Result) -> None:
        """Adds the results of the reply to the oldest unanswered request; they are dropped after a failure."""
        self._note_reply(results)
        if self.failure:
            return
        problem = self._order.problem(results, self._samples)
        if not self._unanswered:
            problem = "the server sent a reply without a request"
        if problem is not None:
            self.fail(ProtocolError(self._stream_id, problem))
            return
        self._last_activity_s = self.now_s()
        request = self._unanswered.popleft()
        self._unanswered_samples -= request.samples
        self._has_replies = True
        self._held_start = None
        is_final = request.is_final
        if self._end_is_enqueued and not self._unanswered:
            is_final = ends_stream(results, self._samples)
            if not is_final:  # round trips of what follows count from the stream's end, too
                self._unanswered.append(request._replace(samples=0))
                self._outgoing.append(POLL_REQUEST)
        round_trip_s = self._last_activity_s - request.sent_s
        last = len(results) - 1 if is_final else None
        self._results += [
            result.after(round_trip_s, result.is_final and number != last) for number, result in enumerate(results)
        ]

    def rejected(self, error: ClientError) -> None:
        """Fails the stream by the reply to the oldest unanswered request."""
        self._has_rejection = True  # its samples do not count
        self._note_reply(())
        self.fail(error)

    def _note_reply(self, results: Sequence[Result]) -> None:
        """A reply, also after a failure: that to the end says whether the server has work left, which is dropped."""
        self._in_flight = max(0, self._in_flight - 1)
        if not self._in_flight and (self._end_is_due or self._has_work_left):
            self._end_is_due = False
            is_unfinished = bool(results) and not ends_stream(results, self._samples)
            self._has_work_left = is_unfinished and not self._has_rejection
            if self._is_cancelled and self._is_open_on_server:
                self._outgoing.append(END_REQUEST)

    def slot_pause_s(self) -> float | None:
        """The server is full or stopping: the pause until `repeat_start`; None where the stream waits no longer."""
        if not self._waits_for_slot or self._has_replies or self.failure:
            return None
        self._is_rejected = True
        pause_s = next(self._slot_pauses_s, None)
        if pause_s is not None:
            self._start_is_sent = self._end_is_sent = self._end_is_due = False
            self._in_flight = 0
            self._last_activity_s = self.now_s() + pause_s
        return pause_s

    def repeat_start(self) -> None:
        """Enqueues the first request again, which the server has not kept."""
        if self._held_start is not None and not self.failure:
            self._outgoing.appendleft(self._held_start)
            self._held_start = None

    def next_result(self) -> Result | None:
        """The next result, or None. Raises the stream's failure after the results that came before it."""
        if self._results:
            return self._results.popleft()
        if self.failure:
            raise self.failure
        return None

    def fail(self, error: ClientError) -> None:
        """Ends the stream with an error, unless it is answered or has failed before. Drops the unsent requests."""
        if not self.failure and not self._is_answered:
            self.failure = error
            self._drop_unsent()

    def connection_lost(self, reason: str) -> None:
        """Fails the stream because its connection did: the server was never reached, or is lost."""
        if self._has_replies:
            self.fail(
                ConnectionLostError(self._stream_id, f"lost the connection to the server at {self._url}: {reason}")
            )
        else:
            self.fail(ServerUnreachableError(self._url, reason))

    def ended_by_server(self) -> None:
        """Fails the stream if a request is unanswered: no further reply will come."""
        self.fail(ConnectionLostError(self._stream_id, f"the server at {self._url} ended the stream"))

    def time_out(self) -> None:
        """Fails the stream because the server has not replied, or not been reached, within the timeout."""
        if self._is_connected:
            message = f"no reply from the server at {self._url} for {self._timeout_s:g} s"
            self.fail(ReplyTimeoutError(self._stream_id, message))
        else:
            self.fail(ServerUnreachableError(self._url, f"no connection for {self._timeout_s:g} s"))

    def cancel(self) -> None:
        """Drops unsent requests and results to come. If the server may have the stream open, its end is sent.

        Only the stream's last request frees its place in Triton: a rejected request leaves the stream open, and so do
        a cancelled call and a closed connection. Where the server has work left after the end, the end is sent again.
        """
        if self._is_cancelled:
            return
        self._cancelled_at_s = self.now_s()
        self.fail(StreamClosedError(self._stream_id, "the stream was closed before its last result"))
        self._drop_unsent()
        if self._is_open_on_server:
            self._outgoing.append(END_REQUEST)

    def seconds_to_wait(self, deadline_s: float) -> float:
        """Time to wait for a change of this session; 0 at the deadline or after a failure.

        Fails the stream if the server has been silent for the timeout.
        """
        now_s = self.now_s()
        timeout_s = self._last_activity_s + self._timeout_s - now_s if self._unanswered else math.inf
        if timeout_s <= 0:
            self.time_out()
        return 0.0 if self.failure else max(0.0, min(deadline_s - now_s, timeout_s))

    def _drop_unsent(self) -> None:
        self._samples -= sum(request.samples for request in self._outgoing)
        self._outgoing.clear()

    @property
    def _is_cancelled(self) -> bool:
        return self._cancelled_at_s is not None

    @property
    def _is_answered(self) -> bool:
        return self._end_is_enqueued and not self._unanswered

    @property
    def _is_open_on_server(self) -> bool:
        """True where the server may hold the stream open. After NOT_OPEN its id may be another stream's by now."""
        is_unknown = isinstance(self.failure, StreamNotOpenError)
        return not self.is_unsent and not is_unknown and (self._has_work_left or not self._end_is_sent)
