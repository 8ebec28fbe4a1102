"""Requests of the plain Triton clients to `asr` and `asr_batch`, which can also send what the library rejects."""

import itertools
import queue
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from penstock.serving.launch import Ports
from penstock.serving.model_repository import SPEAKER_ENSEMBLE
from penstock_client.batched.rows import END, START, Row

if TYPE_CHECKING:  # clients that will be killed start without torch
    from penstock.pipeline.results.results import StreamResult

_CLIENTS = {"grpc": triton_grpc, "http": triton_http}
SINGLE = ("SEGMENT", "TEXT", "IS_FINAL", "AUDIO_PROCESSED")
LISTED = ("WORDS", "WORD_START_MS", "WORD_END_MS"), ("TOKENS", "TIMESTAMPS"), ("ALTERNATIVES",)
OUTPUTS = (*SINGLE, *itertools.chain(*LISTED))
BATCHED_OUTPUTS = (*OUTPUTS, "LANGUAGE", "STABLE_CHARS", "LIST_COUNTS", "ROW", "ERROR_ROWS", "ERRORS")
SPEAKER_OUTPUTS = ("SPEAKER_COUNTS", "WORD_SPEAKERS", "ALTERNATIVE_WORDS")
_DATATYPES = {np.dtype(np.float32): "FP32", np.dtype(np.int16): "INT16", np.dtype(np.int64): "INT64"}
TIMEOUT_S = 60.0
BATCHED = "batched"
"""A way to send a stream, beside the protocols of `asr`."""

BatchedReply = triton_grpc.InferResult | InferenceServerException


@dataclass(frozen=True)
class Reply:
    """The server's answer to one request."""

    segment: int
    text: str
    is_final: bool
    processed_s: float
    words: tuple[tuple[str, int, int], ...]
    tokens: tuple[tuple[int, int], ...]
    """Token id and encoder frame."""
    alternatives: tuple[str, ...]

    @classmethod
    def of_result(cls, result: "StreamResult") -> "Reply":
        """Converts a result of this process's recognizer."""
        return cls(
            result.segment,
            result.text,
            result.is_final,
            np.float32(result.audio_processed_s).item(),
            tuple(word[:3] for word in result.words),
            tuple(token[:2] for token in result.tokens),
            tuple(one.text for one in result.alternatives),
        )


class RawStream:
    """Sends one request after the other. Raises InferenceServerException where one is rejected."""

    def __init__(self, url: str, stream_id: str | int, protocol: str = "grpc", timeout_s: float = 30.0):
        self.id = stream_id
        self._library = _CLIENTS[protocol]
        more = {"network_timeout": timeout_s, "connection_timeout": timeout_s} if protocol == "http" else {}
        self._client = self._library.InferenceServerClient(url, **more)
        self._timeout = {"client_timeout": timeout_s} if protocol == "grpc" else {}
        self._outputs = [self._library.InferRequestedOutput(name) for name in OUTPUTS]

    def send(
        self,
        samples: np.ndarray,
        start: bool = False,
        end: bool = False,
        parameters: dict[str, Any] | None = None,
        request_id: str = "",
    ) -> Reply:
        """Sends one request of audio."""
        audio = self._library.InferInput("AUDIO", [1, len(samples)], "FP32")
        audio.set_data_from_numpy(np.asarray(samples, np.float32)[None])
        result = self._client.infer(
            "asr",
            [audio],
            outputs=self._outputs,
            sequence_id=self.id,
            sequence_start=start,
            sequence_end=end,
            parameters=parameters,
            request_id=request_id,
            **self._timeout,
        )
        return _replies(result, [[None] * len(LISTED)], [[0] * len(LISTED)])[0]

    def close(self) -> None:
        """Closes the connection without END."""
        self._client.close()

    def __enter__(self) -> "RawStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def request_arrays(rows: Sequence[Row], as_pcm: bool) -> dict[str, np.ndarray]:
    """The inputs of one request; as_pcm: samples as int16."""
    options = _distinct_options(rows)
    samples = np.concatenate([row.samples for row in rows])
    table = [
        (row.number, len(row.samples), row.flags, -1 if row.options is None else options.index(row.options))
        for row in rows
    ]
    audio, pcm = (samples[:0], samples) if as_pcm else (samples, samples[:0])
    pcm = np.round(pcm * 32768).astype(np.int16)
    return {"AUDIO": audio[None], "PCM": pcm[None], "ROWS": np.array([table], np.int64)}


def request_parameters(client: str, rows: Sequence[Row]) -> dict[str, str]:
    """The parameters of the request with these rows."""
    return {"client": client, "options": f"[{','.join(_distinct_options(rows))}]"}


def _distinct_options(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.options for row in rows if row.options is not None))


def inputs_of(arrays: dict[str, np.ndarray]) -> list[triton_grpc.InferInput]:
    """Arrays as Triton's inputs."""
    made = []
    for name, values in arrays.items():
        one = triton_grpc.InferInput(name, list(values.shape), _DATATYPES[values.dtype])
        made.append(one.set_data_from_numpy(values))
    return made


class BatchedConnection:
    """One gRPC stream of requests to an ensemble that takes rows. Use it as a context manager."""

    def __init__(self, url: str, client: str, model: str = "asr_batch"):
        self._client = triton_grpc.InferenceServerClient(url)
        self._name, self._model = client, model
        names = BATCHED_OUTPUTS + (SPEAKER_OUTPUTS if model == SPEAKER_ENSEMBLE else ())
        self._outputs = [triton_grpc.InferRequestedOutput(name) for name in names]
        self._replies: queue.Queue[BatchedReply] = queue.Queue()

    def __enter__(self) -> "BatchedConnection":
        self._client.start_stream(lambda result, error: self._replies.put(error or result))
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Waits for unanswered requests only without an error: a server that has failed would not answer them."""
        self._client.stop_stream(cancel_requests=error_type is not None)
        self._client.close()

    def send(self, rows: Sequence[Row], as_pcm: bool = False) -> None:
        """Sends a request without a wait for earlier replies."""
        self.send_arrays(request_arrays(rows, as_pcm), request_parameters(self._name, rows))

    def send_arrays(self, arrays: dict[str, np.ndarray], parameters: dict) -> None:
        """Sends a request, which may be wrong."""
        self._client.async_stream_infer(self._model, inputs_of(arrays), outputs=self._outputs, parameters=parameters)

    def receive(self, timeout_s: float = TIMEOUT_S) -> BatchedReply:
        """The next reply, or the error of a request that was rejected as a whole."""
        return self._replies.get(timeout=timeout_s)

    def ask(self, rows: Sequence[Row]) -> triton_grpc.InferResult:
        """Sends a request and waits for its reply."""
        self.send(rows)
        reply = self.receive()
        assert not isinstance(reply, InferenceServerException), reply
        return reply


def replies_of(result: triton_grpc.InferResult) -> dict[int, Reply]:
    """By row with a new result: the reply to it, as `asr` gives it. For streams without endpoints."""
    rows = result.as_numpy("ROW")[0].tolist()
    assert len(set(rows)) == len(rows), rows
    counts = result.as_numpy("LIST_COUNTS").reshape(-1, len(LISTED))
    ends = np.cumsum(counts, axis=0)
    return dict(zip(rows, _replies(result, ends, ends - counts), strict=True))


def _replies(result: Any, ends: Sequence, starts: Sequence) -> list[Reply]:
    """The replies in a result; of each, where its words, its tokens and its alternatives end and start."""
    values = {name: result.as_numpy(name)[0].tolist() for name in OUTPUTS}
    values |= {name: [text.decode() for text in values[name]] for name in ("TEXT", "WORDS", "ALTERNATIVES")}
    found = []
    for entry, (entry_ends, entry_starts) in enumerate(zip(ends, starts, strict=True)):
        words, tokens, alternatives = (
            tuple(zip(*(values[name][start:end] for name in names), strict=True))
            for names, start, end in zip(LISTED, entry_starts, entry_ends, strict=True)
        )
        singles = [values[name][entry] for name in SINGLE]
        found.append(Reply(*singles, words, tokens, tuple(text for (text,) in alternatives)))
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
        self._last = Reply(0, "", False, 0.0, (), (), ())

    def __enter__(self) -> "BatchedRawStream":
        self._connection.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._connection.__exit__(*error)

    def send(self, samples: np.ndarray, start: bool = False, end: bool = False) -> Reply:
        """Sends one request of audio. A row without a new result repeats the last reply, without its words."""
        row = Row(1, np.asarray(samples, np.float32), START * start + END * end)
        self._connection.send([row])
        try:
            reply = self._connection.receive(self._timeout_s)
        except queue.Empty:
            raise InferenceServerException(f"no reply for {self._timeout_s:g} s") from None
        if isinstance(reply, InferenceServerException):
            raise reply
        for message in errors_of(reply).values():
            raise InferenceServerException(message)
        last = Reply(0, "", False, 0.0, (), (), ()) if start else self._last
        without_changes = replace(last, words=(), tokens=(), alternatives=())
        self._last = replies_of(reply).get(0, without_changes)
        return self._last


def raw_stream(ports: Ports, name: str, protocol: str, timeout_s: float = 30.0) -> RawStream | BatchedRawStream:
    """A stream over `grpc`, `http` or BATCHED."""
    if protocol == BATCHED:
        return BatchedRawStream(f"127.0.0.1:{ports.grpc}", name, timeout_s)
    return RawStream(f"127.0.0.1:{getattr(ports, protocol)}", name, protocol, timeout_s)
