"""A request to `asr`, checked: its stream, its audio, its parameters. Knows no wire format and no stream."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic_core import from_json

from penstock_client.audio.tracks import Samples
from penstock_client.protocol import INPUT_DATATYPE, INPUT_NAME, MAX_REQUEST_SAMPLES, MAX_STRING_ID_BYTES
from penstock_gateway.errors import ErrorCode, GatewayError, shown
from penstock_gateway.kserve.errors import invalid_option, invalid_request
from penstock_gateway.kserve.model import DATATYPES

MAX_AUDIO_BYTES = 4 * MAX_REQUEST_SAMPLES
MAX_FIELDS_BYTES = 1 << 20
"""What a request has beside its audio: 2,000 phrases have up to 400 kB."""
SequenceId = int | str
_MAX_NUMBER = 2**64 - 1
_MAX_MAGNITUDE = 2.0
"""The server's limit: samples are in -1 .. 1."""
_SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
_FINALIZE = "finalize"
_PHRASES = "boosted_phrases"
_SHAPE = f"{INPUT_DATATYPE} [1, n], n up to {MAX_REQUEST_SAMPLES:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRequest:
    """The next part of one stream's audio."""

    sequence_id: SequenceId
    is_start: bool
    is_end: bool
    finalize: bool = False
    options: Mapping[str, Any]
    """The stream's options, of a request that starts it."""
    samples: Samples
    """[n] float32."""
    outputs: Sequence[str]
    problem: GatewayError | None = None
    """Why it is rejected; its stream is not affected, unless it is the last request. Raise a copy."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input as a client describes it."""

    name: str
    datatype: str
    shape: Sequence[int]


def make_request(
    parameters: Mapping[str, Any], tensors: Sequence[Tensor], values: Samples | bytes, outputs: Sequence[str]
) -> InferRequest:
    """Checks a request. `values`: those of its only input, as an array [n] or as bytes.

    GatewayError where it names no stream or wrong outputs. Another problem is the request's, because the last request
    of a stream ends it also where it is rejected.
    """
    stream_id, is_start, is_end = _sequence(parameters)
    if unknown := [name for name in outputs if name not in DATATYPES]:
        raise invalid_request(f"output {shown(unknown[0])} is unknown; accepted: {', '.join(DATATYPES)}")
    samples, finalize, problem = np.empty(0, np.float32), False, None
    options: Mapping[str, Any] = {}
    try:
        finalize, options = _options(parameters, is_start)
        samples = _samples(tensors, values)
    except GatewayError as error:
        problem = error.again()
    return InferRequest(
        sequence_id=stream_id,
        is_start=is_start,
        is_end=is_end,
        finalize=finalize,
        options=options,
        samples=samples,
        outputs=tuple(dict.fromkeys(outputs)) or tuple(DATATYPES),
        problem=problem,
    )


def _sequence(parameters: Mapping[str, Any]) -> tuple[SequenceId, bool, bool]:
    """The stream, and whether the request starts and ends it."""
    stream_id = parameters.get("sequence_id", "")
    accepted = f"accepted: a positive integer, or a text of up to {MAX_STRING_ID_BYTES} bytes"
    if stream_id in ("", 0):
        raise invalid_option(f"sequence_id is missing; {accepted}")
    if isinstance(stream_id, str):
        is_usable = len(stream_id.encode("utf-8", "replace")) <= MAX_STRING_ID_BYTES
    else:
        is_usable = type(stream_id) is int and 0 < stream_id <= _MAX_NUMBER
    if not is_usable:
        raise invalid_option(f"sequence_id is {shown(stream_id)}; {accepted}")
    return stream_id, _flag(parameters, "sequence_start"), _flag(parameters, "sequence_end")


def _flag(parameters: Mapping[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise invalid_option(f"{name} is {shown(value)}; accepted: true, false")
    return value


def _options(parameters: Mapping[str, Any], is_start: bool) -> tuple[bool, dict[str, Any]]:
    """`finalize`, and the options of a stream that starts; their names and values are checked at its start."""
    finalize = _flag(parameters, _FINALIZE)
    options = {name: value for name, value in parameters.items() if name not in (*_SEQUENCE, _FINALIZE)}
    if options and not is_start:
        raise invalid_option(f"{shown(min(options))} is given after the stream's start; accepted: {_FINALIZE}")
    for name, value in options.items():
        if not isinstance(value, str | int | float):
            raise invalid_option(f"{shown(name)} is {shown(value)}; accepted: a text, a number, true, false")
    if _PHRASES in options:
        options[_PHRASES] = _phrases(options[_PHRASES])
    return finalize, options


def _phrases(text: object) -> list[Any]:
    try:
        phrases = from_json(text, allow_inf_nan=False) if isinstance(text, str) else None
    except ValueError:
        phrases = None
    if not isinstance(phrases, list):
        raise invalid_option(f'{_PHRASES} is {shown(text)}; accepted: JSON, as ["phrase", ["phrase", boost]]')
    return phrases


def _samples(tensors: Sequence[Tensor], values: Samples | bytes) -> Samples:
    """The samples [n] of the only input; its size is compared before anything is made of it."""
    if len(tensors) != 1 or tensors[0].name != INPUT_NAME:
        names = ", ".join(shown(tensor.name) for tensor in tensors[:5]) or "none"
        raise invalid_request(f"inputs are {names}; accepted: {INPUT_NAME} alone")
    datatype, shape = tensors[0].datatype, list(tensors[0].shape)
    if datatype != INPUT_DATATYPE or len(shape) != 2 or shape[0] != 1 or shape[1] < 0:
        raise invalid_request(f"{INPUT_NAME} is {shown(datatype)} {shown(shape)}; accepted: {_SHAPE}")
    if shape[1] > MAX_REQUEST_SAMPLES:
        raise _invalid_audio(f"{shape[1]} samples in one request; accepted: {_SHAPE}")
    stated = shape[1] * (4 if isinstance(values, bytes) else 1)
    if len(values) != stated:
        kind = "bytes" if isinstance(values, bytes) else "values"
        raise invalid_request(f"{INPUT_NAME} has {len(values)} {kind}; its shape {shape} has {stated}")
    samples = np.frombuffer(values, "<f4") if isinstance(values, bytes) else values
    loudest = float(np.abs(samples).max(initial=0.0))
    if not loudest <= _MAX_MAGNITUDE:  # also not a number
        what = f"a sample has the magnitude {loudest:g}" if math.isfinite(loudest) else "some samples are not finite"
        raise _invalid_audio(f"{what}; accepted: finite samples in -1 .. 1, at most {_MAX_MAGNITUDE:g}")
    return samples


def _invalid_audio(message: str) -> GatewayError:
    return GatewayError(ErrorCode.AUDIO_INVALID, message)
