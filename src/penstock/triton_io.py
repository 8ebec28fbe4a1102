"""Triton requests and tensors <-> the stages' own types. With the adapters, the only place that knows the server."""

import json
from typing import NamedTuple

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

from penstock.errors import StreamError, StreamErrorKind
from penstock.stages.decoder import StreamResult
from penstock.stages.features import AudioRequest, FeatureReply
from penstock.streams import Lease

_START, _END = 1, 2  # flag bits of a sequence request

# By name: the stub adds its classes to pb_utils only after this module has been imported.
_CODES = {
    StreamErrorKind.INVALID_ARGUMENT: "INVALID_ARG",
    StreamErrorKind.NOT_FOUND: "NOT_FOUND",
    StreamErrorKind.UNAVAILABLE: "UNAVAILABLE",
    StreamErrorKind.INTERNAL: "INTERNAL",
}


def is_start(request) -> bool:
    """True for a sequence's first request."""
    return bool(request.flags() & _START)


def is_end(request) -> bool:
    """True for a sequence's last request."""
    return bool(request.flags() & _END)


def audio_request(request) -> AudioRequest:
    """AUDIO [1, n], the correlation id, the flags and the options of a request."""
    return AudioRequest(
        stream_id=request.correlation_id(),
        samples=pb_utils.get_input_tensor_by_name(request, "AUDIO").as_numpy()[0],
        is_start=is_start(request),
        is_end=is_end(request),
        options=stream_options(request),
    )


def stream_options(request) -> dict:
    """The parameters of a request."""
    parameters = request.parameters()
    return json.loads(parameters) if parameters else {}


def tensor(request, name: str) -> torch.Tensor:
    """An input without its batch axis; stays on the device where it is on one."""
    found = pb_utils.get_input_tensor_by_name(request, name)
    if found.is_cpu():
        return torch.from_numpy(found.as_numpy())[0]
    return torch.from_dlpack(found.to_dlpack())[0]


class Ticket(NamedTuple):
    """What the feature member tells the later ones of a request: TICKET [1, 4] int64."""

    lease: Lease
    last_valid_mel_frames: int
    covered_samples: int


def ticket(request) -> Ticket:
    """Reads TICKET."""
    slot, generation, *rest = pb_utils.get_input_tensor_by_name(request, "TICKET").as_numpy()[0].tolist()
    return Ticket(Lease(slot, generation), *rest)


def error_response(error: StreamError):
    """A refusal of one request."""
    code = getattr(pb_utils.TritonError, _CODES[error.kind])
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))


def wait_for_device(device: str) -> None:
    """Waits until what was queued on a GPU is there: the next member reads it from another process."""
    if device != "cpu":
        torch.cuda.current_stream().synchronize()


def tensor_output(name: str, value: torch.Tensor):
    """An output of shape [1, ...], handed on without leaving the device."""
    if value.is_cpu:
        return pb_utils.Tensor(name, value.unsqueeze(0).numpy())
    return pb_utils.Tensor.from_dlpack(name, value.unsqueeze(0).contiguous())


def feature_response(reply: FeatureReply):
    """MEL [1, C, N, F] float32 and TICKET."""
    mel, last_valid, covered = reply.chunks
    row = np.array([(*reply.lease, last_valid, covered)], np.int64)
    return pb_utils.InferenceResponse([tensor_output("MEL", mel), pb_utils.Tensor("TICKET", row)])


def encoded_response(frames: torch.Tensor):
    """ENCODED [1, T, D] float32."""
    return pb_utils.InferenceResponse([tensor_output("ENCODED", frames)])


def result_response(result: StreamResult):
    """Every output, each [1, n]; Triton sends the client those that it asked for."""
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, make(result)) for name, make in _OUTPUTS.items()])


def _texts(texts) -> np.ndarray:
    return np.array([[text.encode() for text in texts]], dtype=np.object_).reshape(1, -1)


def _numbers(numbers, dtype) -> np.ndarray:
    return np.array([list(numbers)], dtype=dtype)


_OUTPUTS = {
    "SEGMENT": lambda r: _numbers([r.segment], np.int32),
    "TEXT": lambda r: _texts([r.text]),
    "IS_FINAL": lambda r: _numbers([r.is_final], np.bool_),
    "AUDIO_PROCESSED": lambda r: _numbers([r.audio_processed_s], np.float32),
    "WORDS": lambda r: _texts(word.text for word in r.words),
    "WORD_START_MS": lambda r: _numbers((word.start_ms for word in r.words), np.int32),
    "WORD_END_MS": lambda r: _numbers((word.end_ms for word in r.words), np.int32),
    "WORD_CONFIDENCE": lambda r: _numbers((word.confidence for word in r.words), np.float32),
    "TOKENS": lambda r: _numbers((token.id for token in r.tokens), np.int32),
    "TIMESTAMPS": lambda r: _numbers((token.timestamp for token in r.tokens), np.int32),
    "ALTERNATIVES": lambda r: _texts(one.text for one in r.alternatives),
    "ALTERNATIVE_SCORES": lambda r: _numbers((one.score for one in r.alternatives), np.float32),
}


def sequence_idle_limit_s(args: dict) -> float:
    """How long Triton keeps a silent sequence, from the model's own configuration."""
    config = json.loads(args["model_config"])
    return int(config["sequence_batching"]["max_sequence_idle_microseconds"]) / 1e6


def log_start(member: str, message: str) -> None:
    """One line in the server's log."""
    pb_utils.Logger.log_info(f"penstock {member}: {message}")
