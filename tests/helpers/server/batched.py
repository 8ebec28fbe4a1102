"""Requests to `asr_batch` of a real server, many in flight at once."""

import queue
from collections.abc import Sequence

import numpy as np
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from tests.helpers.batch_schedule import Row, request_arrays

OUTPUTS = (
    "SEGMENT", "TEXT", "IS_FINAL", "AUDIO_PROCESSED", "LANGUAGE", "STABLE_CHARS", "LIST_COUNTS", "ROW", "ERROR_ROWS",
    "ERRORS", "WORDS", "WORD_START_MS", "WORD_END_MS", "TOKENS", "TIMESTAMPS", "ALTERNATIVES",
)  # fmt: skip
_DATATYPES = {np.dtype(np.float32): "FP32", np.dtype(np.int16): "INT16", np.dtype(np.int64): "INT64"}
TIMEOUT_S = 60.0

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

    def __exit__(self, *_: object) -> None:
        self._client.stop_stream()
        self._client.close()

    def send(self, arrays: dict[str, np.ndarray], parameters: dict | None = None) -> None:
        """Sends a request without a wait for earlier replies."""
        self._client.async_stream_infer(
            "asr_batch", inputs_of(arrays), outputs=self._outputs,
            parameters=self._parameters if parameters is None else parameters,
        )  # fmt: skip

    def receive(self) -> Reply:
        """The next reply, or the error of a request that was rejected as a whole."""
        return self._replies.get(timeout=TIMEOUT_S)

    def ask(self, rows: Sequence[Row], as_pcm: bool = False) -> triton_grpc.InferResult:
        """Sends a request and waits for its reply."""
        self.send(request_arrays(list(rows), as_pcm))
        reply = self.receive()
        assert not isinstance(reply, InferenceServerException), reply
        return reply
