"""One audio stream as single requests of the plain Triton clients, which can also send what the library rejects."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from penstock.pipeline.results.results import StreamResult

_CLIENTS = {"grpc": triton_grpc, "http": triton_http}
OUTPUTS = (
    "SEGMENT", "TEXT", "IS_FINAL", "AUDIO_PROCESSED", "WORDS", "WORD_START_MS", "WORD_END_MS", "TOKENS", "TIMESTAMPS",
    "ALTERNATIVES",
)  # fmt: skip


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
    def of_result(cls, result: StreamResult) -> "Reply":
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
        row = {name: result.as_numpy(name)[0].tolist() for name in OUTPUTS}
        texts = {name: [text.decode() for text in row[name]] for name in ("TEXT", "WORDS", "ALTERNATIVES")}
        return Reply(
            row["SEGMENT"][0],
            texts["TEXT"][0],
            row["IS_FINAL"][0],
            row["AUDIO_PROCESSED"][0],
            tuple(zip(texts["WORDS"], row["WORD_START_MS"], row["WORD_END_MS"], strict=True)),
            tuple(zip(row["TOKENS"], row["TIMESTAMPS"], strict=True)),
            tuple(texts["ALTERNATIVES"]),
        )

    def close(self) -> None:
        """Closes the connection without END."""
        self._client.close()

    def __enter__(self) -> "RawStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
