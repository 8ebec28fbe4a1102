"""Triton requests and tensors <-> the stages' own types. With the adapters, the only place that knows the server."""

import json
from typing import NamedTuple

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

from penstock.errors import StreamError, StreamErrorKind
from penstock.metrics import Kind, Metric
from penstock.stages.features import AudioRequest, FeatureReply
from penstock.stages.stream_text import StreamResult
from penstock.stream_options import FINALIZE
from penstock.streams import NO_LEASE, Lease
from penstock.ticket_seal import TicketSeal

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
    """AUDIO [1, n], the correlation id, the flags and the parameters of a request."""
    audio = pb_utils.get_input_tensor_by_name(request, "AUDIO").as_numpy()
    options = _parameters(request)
    finalize = options.pop(FINALIZE, False)
    return AudioRequest(
        stream_id=request.correlation_id(),
        samples=audio[0] if len(audio) == 1 else audio,  # more than one row is refused by its shape
        is_start=is_start(request),
        is_end=is_end(request),
        options=options,
        finalize=finalize,
    )


def stream_options(request) -> dict:
    """The options that a stream's first request brings, without what the feature member has taken out for itself."""
    options = _parameters(request)
    options.pop(FINALIZE, None)
    return options


def _parameters(request) -> dict:
    parameters = request.parameters()
    return {} if parameters in ("", "{}") else json.loads(parameters)  # nearly every request has none


def tensor(request, name: str) -> torch.Tensor:
    """An input without its batch axis; stays on the device where it is on one."""
    found = pb_utils.get_input_tensor_by_name(request, name)
    if found.is_cpu():
        return torch.from_numpy(found.as_numpy())[0]
    return torch.from_dlpack(found.to_dlpack())[0]


class Ticket(NamedTuple):
    """What the feature member tells the later ones of a request: TICKET [1, 7] int64, the last its seal."""

    lease: Lease
    last_valid_mel_frames: int
    covered_samples: int
    ends_segment: bool
    heard_ns: int
    """When the feature member had the request's audio, on the machine's monotonic clock."""


def ticket(request, seal: TicketSeal) -> Ticket:
    """Reads TICKET. One that the feature member has not sealed says nothing, and nobody has its slot."""
    row = pb_utils.get_input_tensor_by_name(request, "TICKET").as_numpy()[0]
    slot, generation, last_valid, covered, ends_segment, heard_ns, found = row.tolist()
    if found != seal.of(row[:-1]):
        return Ticket(NO_LEASE, 0, 0, False, 0)
    return Ticket(Lease(slot, generation), last_valid, covered, bool(ends_segment), heard_ns)


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


def feature_response(reply: FeatureReply, heard_ns: int, seal: TicketSeal):
    """MEL [1, C, N, F] float32 and TICKET."""
    mel, last_valid, covered = reply.chunks
    row = np.array([(*reply.lease, last_valid, covered, reply.ends_segment, heard_ns, 0)], np.int64)
    row[0, -1] = seal.of(row[0, :-1])
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
    "ALTERNATIVE_WORDS": lambda r: _texts(json.dumps(one.words) for one in r.alternatives),
}


def sequence_idle_limit_s(args: dict) -> float:
    """How long Triton keeps a silent sequence, from the model's own configuration."""
    config = json.loads(args["model_config"])
    return int(config["sequence_batching"]["max_sequence_idle_microseconds"]) / 1e6


class _TritonMetric:
    """One metric with its family, which must be the last of the two to go."""

    def __init__(self, name: str, meaning: str, kind: Kind):
        kinds = {"counter": pb_utils.MetricFamily.COUNTER, "gauge": pb_utils.MetricFamily.GAUGE}
        family = pb_utils.MetricFamily(name=name, description=meaning, kind=kinds[kind])
        metric = family.Metric(labels={})
        self.increment, self.set = metric.increment, metric.set
        self._family = family


def make_metric(name: str, meaning: str, kind: Kind) -> Metric:
    """A metric that Triton shows with its own."""
    return _TritonMetric(name, meaning, kind)


def log_start(member: str, message: str) -> None:
    """One line in the server's log."""
    pb_utils.Logger.log_info(f"penstock {member}: {message}")
