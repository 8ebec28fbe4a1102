"""Triton requests and tensors <-> the stages' own types. With the adapters, the only place that knows the server."""

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

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
_KEPT_OUTPUTS = 512

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
        return torch.from_numpy(found.as_numpy()[0])
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


@lru_cache(_KEPT_OUTPUTS)
def _kept_output(name: str, shape: tuple[int, ...], dtype: Any, values: tuple = ()):
    """An output that many responses share: made once, it lies ready where Triton copies it from."""
    return pb_utils.Tensor(name, _array(values, dtype).reshape(shape))


def release_outputs() -> None:
    """Gives back what responses have shared, while Triton's memory for it is still there."""
    _kept_output.cache_clear()


def tensor_output(name: str, value: torch.Tensor):
    """An output of shape [1, ...], handed on without leaving the device."""
    if not value.numel():  # most requests complete no chunk; never a GPU tensor of nothing
        return _kept_output(name, (1, *value.shape), np.float32)
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
    outputs = [_kept_output(name, (1, 1), dtype, (value(result),)) for name, dtype, value in _SINGLE_OUTPUTS]
    for field, listed in _LISTED_OUTPUTS.items():
        entries = getattr(result, field)
        outputs += [
            pb_utils.Tensor(name, _array(map(value, entries), dtype).reshape(1, -1))
            if entries
            else _kept_output(name, (1, 0), dtype)
            for name, dtype, value in listed
        ]
    return pb_utils.InferenceResponse(outputs)


def _array(values, dtype) -> np.ndarray:
    """[n]; texts as UTF-8 bytes in an array of objects, as Triton wants them."""
    if dtype is np.object_:
        values = (text.encode() for text in values)
    return np.array(list(values), dtype=dtype)


class _Output(NamedTuple):
    name: str
    dtype: Any
    value: Callable[[Any], Any]
    """Of the result, or of each entry of one of its lists."""


_SINGLE_OUTPUTS = (
    _Output("SEGMENT", np.int32, lambda result: result.segment),
    _Output("TEXT", np.object_, lambda result: result.text),
    _Output("IS_FINAL", np.bool_, lambda result: result.is_final),
    _Output("AUDIO_PROCESSED", np.float32, lambda result: result.audio_processed_s),
)
_LISTED_OUTPUTS = {
    "words": (
        _Output("WORDS", np.object_, lambda word: word.text),
        _Output("WORD_START_MS", np.int32, lambda word: word.start_ms),
        _Output("WORD_END_MS", np.int32, lambda word: word.end_ms),
        _Output("WORD_CONFIDENCE", np.float32, lambda word: word.confidence),
    ),
    "tokens": (
        _Output("TOKENS", np.int32, lambda token: token.id),
        _Output("TIMESTAMPS", np.int32, lambda token: token.timestamp),
    ),
    "alternatives": (
        _Output("ALTERNATIVES", np.object_, lambda one: one.text),
        _Output("ALTERNATIVE_SCORES", np.float32, lambda one: one.score),
        _Output("ALTERNATIVE_WORDS", np.object_, lambda one: json.dumps(one.words)),
    ),
}


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


def largest_batch(args: dict) -> int:
    """Requests that Triton hands over at once, by the `args` of a member's `initialize`."""
    return json.loads(args["model_config"])["max_batch_size"]


def log_start(member: str, message: str) -> None:
    """One line in the server's log."""
    pb_utils.Logger.log_info(f"penstock {member}: {message}")
