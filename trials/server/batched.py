"""Requests to `asr_batch` of a real server, many in flight at once."""

import queue
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from penstock.serving.launch import Ports
from trials.server.batch_schedule import END, LISTED, START, Row, request_arrays
from trials.server.raw_stream import RawStream
from trials.server.raw_stream import Reply as StreamReply

OUTPUTS = (
    "SEGMENT", "TEXT", "IS_FINAL", "AUDIO_PROCESSED", "LANGUAGE", "STABLE_CHARS", "LIST_COUNTS", "ROW", "ERROR_ROWS",
    "ERRORS", "WORDS", "WORD_START_MS", "WORD_END_MS", "TOKENS", "TIMESTAMPS", "ALTERNATIVES",
)  # fmt: skip
_DATATYPES = {np.dtype(np.float32): "FP32", np.dtype(np.int16): "INT16", np.dtype(np.int64): "INT64"}
TIMEOUT_S = 60.0
BATCHED = "batched"
"""A way to send a stream, beside the protocols of `asr`."""

Reply = triton_grpc.InferResult | InferenceServerException


def inputs_of(arrays: dict[str, np.ndarray]) -> list[triton_grpc.InferInput]:
    """Arrays as Triton's inputs."""
    made = []
    for name, values in arrays.items():
        one = triton_grpc.InferInput(name, list(values.shape), _DATATYPES.get(values.dtype, "BYTES"))
        made.append(one.set_data_from_numpy(values))
    return made


class BatchedConnection:
    """One gRPC stream of requests to `asr_batch`. Use it as a context manager."""

    def __init__(self, url: str, client: str):
        self._client = triton_grpc.InferenceServerClient(url)
        self._parameters = {"client": client}
        self._outputs = [triton_grpc.InferRequestedOutput(name) for name in OUTPUTS]
        self._replies: queue.Queue[Reply] = queue.Queue()

    def __enter__(self) -> "BatchedConnection":
        self._client.start_stream(lambda result, error: self._replies.put(error or result))
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Waits for unanswered requests only without an error: a server that has failed would not answer them."""
        self._client.stop_stream(cancel_requests=error_type is not None)
        self._client.close()

    def send(self, arrays: dict[str, np.ndarray], parameters: dict | None = None) -> None:
        """Sends a request without a wait for earlier replies."""
        self._client.async_stream_infer(
            "asr_batch",
            inputs_of(arrays),
            outputs=self._outputs,
            parameters=self._parameters if parameters is None else parameters,
        )

    def receive(self, timeout_s: float = TIMEOUT_S) -> Reply:
        """The next reply, or the error of a request that was rejected as a whole."""
        return self._replies.get(timeout=timeout_s)

    def ask(self, rows: Sequence[Row], as_pcm: bool = False) -> triton_grpc.InferResult:
        """Sends a request and waits for its reply."""
        self.send(request_arrays(list(rows), as_pcm))
        reply = self.receive()
        assert not isinstance(reply, InferenceServerException), reply
        return reply


def replies_of(result: triton_grpc.InferResult) -> dict[int, StreamReply]:
    """By row with a new result: the reply to it, as `asr` gives it. For streams without endpoints."""
    rows = result.as_numpy("ROW")[0].tolist()
    assert len(set(rows)) == len(rows), rows
    counts = result.as_numpy("LIST_COUNTS").reshape(-1, len(LISTED))
    starts = np.cumsum(counts, axis=0) - counts
    names = ("SEGMENT", "TEXT", "IS_FINAL", "AUDIO_PROCESSED", *(name for names in LISTED for name in names))
    values = {name: result.as_numpy(name)[0].tolist() for name in names}
    values |= {name: [text.decode() for text in values[name]] for name in ("TEXT", "WORDS", "ALTERNATIVES")}
    found = {}
    for entry, row in enumerate(rows):
        words, tokens, alternatives = (
            tuple(zip(*(values[name][start : start + count] for name in names), strict=True))
            for names, start, count in zip(LISTED, starts[entry], counts[entry], strict=True)
        )
        singles = [values[name][entry] for name in names[:4]]
        found[row] = StreamReply(*singles, words, tokens, tuple(text for (text,) in alternatives))
    return found


def errors_of(result: triton_grpc.InferResult) -> dict[int, str]:
    """By rejected row: "CODE: message"."""
    messages = [message.decode() for message in result.as_numpy("ERRORS")[0]]
    return dict(zip(result.as_numpy("ERROR_ROWS")[0].tolist(), messages, strict=True))


class BatchedRawStream:
    """A stream in requests to `asr_batch` of one row each, with the methods of `RawStream`."""

    def __init__(self, url: str, name: str, timeout_s: float = 30.0):
        self.id = name
        self._connection = BatchedConnection(url, name)
        self._timeout_s = timeout_s
        self._last = StreamReply(0, "", False, 0.0, (), (), ())

    def __enter__(self) -> "BatchedRawStream":
        self._connection.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._connection.__exit__(*error)

    def send(self, samples: np.ndarray, start: bool = False, end: bool = False) -> StreamReply:
        """Sends one request of audio. A row without a new result repeats the last reply, without its words."""
        row = Row(1, np.asarray(samples, np.float32), START * start + END * end)
        self._connection.send(request_arrays([row], as_pcm=False))
        try:
            reply = self._connection.receive(self._timeout_s)
        except queue.Empty:
            raise InferenceServerException(f"no reply for {self._timeout_s:g} s") from None
        if isinstance(reply, InferenceServerException):
            raise reply
        for message in errors_of(reply).values():
            raise InferenceServerException(message)
        last = StreamReply(0, "", False, 0.0, (), (), ()) if start else self._last
        without_changes = replace(last, words=(), tokens=(), alternatives=())
        self._last = replies_of(reply).get(0, without_changes)
        return self._last


def raw_stream(ports: Ports, name: str, protocol: str, timeout_s: float = 30.0) -> RawStream | BatchedRawStream:
    """A stream over `grpc`, `http` or BATCHED."""
    if protocol == BATCHED:
        return BatchedRawStream(f"127.0.0.1:{ports.grpc}", name, timeout_s)
    return RawStream(f"127.0.0.1:{getattr(ports, protocol)}", name, protocol, timeout_s)
