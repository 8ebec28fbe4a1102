"""Converts Triton requests and tensors to the types of the stages, and results to Triton responses."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, wraps
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

from penstock.errors import DeviceLostError, ErrorCode, SettingError, StreamError, StreamErrorKind
from penstock.pipeline.options.stream_options import FINALIZE as FINALIZE_PARAMETER
from penstock.pipeline.results.results import Alternative, StreamResult
from penstock.pipeline.results.speakers import SpeakerFrames
from penstock.pipeline.slots.ticket import END, START, Ticket, TicketSigner
from penstock.pipeline.stages.audio_rows import (
    AudioRequest,
    AudioRows,
    SpeakerAudio,
    read_parameters,
    read_rows,
    read_samples,
    rows_of,
)
from penstock.pipeline.stages.encoder import EncodedRows
from penstock.runtime import freeze_loaded, prepare_process
from penstock.serving.metrics import Kind, Metric
from penstock.serving.model_log import ModelLog
from penstock.serving.settings import Settings
from penstock.serving.triton_texts import serialize_texts, stub_size

pb_utils.serialize_byte_tensor = serialize_texts  # the stub calls it for outputs of texts

_SHARED_OUTPUTS, _SHARED_VALUES = 512, 3
_Execute = Callable[[Any, list[Any]], list[Any]]

# Names, because the stub adds its classes to pb_utils only after this module is imported.
_STATUS = {
    StreamErrorKind.INVALID_ARGUMENT: "INVALID_ARG",
    StreamErrorKind.NOT_FOUND: "NOT_FOUND",
    StreamErrorKind.UNAVAILABLE: "UNAVAILABLE",
    StreamErrorKind.INTERNAL: "INTERNAL",
}


def audio_rows(request: Any, max_stream_samples: int) -> AudioRows | StreamError:
    """The rows of a request to `features`: with ROWS many, from `asr_batch`, else the one of an `asr` request.

    max_stream_samples: limit of one stream's samples in a request with ROWS.
    """
    rows = pb_utils.get_input_tensor_by_name(request, "ROWS")
    try:
        if rows is None:
            return rows_of([audio_request(request)])
        samples = read_samples(_array_of(request, "AUDIO"), _array_of(request, "PCM"))
        client, options = read_parameters(_parameters(request))
        return read_rows(client, _host_values(rows).numpy(), samples, options, max_stream_samples)
    except StreamError as error:
        return error


def audio_request(request: Any) -> AudioRequest:
    """AUDIO [1, n], the correlation id, the flags and the parameters of a request to `asr`."""
    stream_id, flags = request.correlation_id(), request.flags()
    if not stream_id:
        raise StreamError(ErrorCode.OPTION_INVALID, "sequence_id is missing; accepted: a positive number or a text")
    audio, options = _array_of(request, "AUDIO"), _parameters(request)
    finalize = options.pop(FINALIZE_PARAMETER, False)
    return AudioRequest(
        stream_id=stream_id,
        samples=audio[0] if len(audio) == 1 else audio,  # the stage rejects more than one row by its shape
        is_start=bool(flags & START),
        is_end=bool(flags & END),
        options=options,
        finalize=finalize,
    )


def _array_of(request: Any, name: str) -> np.ndarray:
    """An input on the host; without elements if the request does not have it."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return np.zeros((1, 0), np.float32) if tensor is None else _host_values(tensor).numpy()


def _host_values(tensor: Any) -> torch.Tensor:
    """The numbers of an input by DLPack, because the stub of Triton 2.51 misreads the arrays of numpy 2.

    They are copied: a view would keep the memory of the whole request.
    """
    return from_dlpack(tensor.to_dlpack()).clone()


def _parameters(request: Any) -> dict[str, Any]:
    parameters = request.parameters()
    return {} if parameters in ("", "{}") else json.loads(parameters)  # nearly every request has none


def tensor(request: Any, name: str) -> torch.Tensor:
    """An input without its batch axis. Between the models all tensors are on the host."""
    return _host_values(pb_utils.get_input_tensor_by_name(request, name))[0]


def ticket(request: Any, signer: TicketSigner, reads_rest: bool = False) -> Ticket | StreamError:
    """TICKET [1, n] int64 of a request of a later stage; only the decoder reads the options and errors in it."""
    try:
        return signer.unpack(_array_of(request, "TICKET")[0], reads_rest)
    except StreamError as error:
        return error


def speaker_audio(request: Any) -> SpeakerAudio | StreamError:
    """AUDIO or PCM, and ROWS, of a request to `speakers`: those that `features` got."""
    try:
        samples = read_samples(_array_of(request, "AUDIO"), _array_of(request, "PCM"))
    except StreamError as error:  # of a client that calls this model
        return error
    _, lengths, flags, _ = _array_of(request, "ROWS")[0].T
    return SpeakerAudio(samples, lengths, flags)


def speaker_frames(request: Any) -> SpeakerFrames | None:
    """PROBABILITIES [1, N, K] float32 and SPEAKER_FRAMES [1, R, 3] int64 of a request to `decoder`.

    None for the empty pair of the ensembles without speakers.
    """
    rows = _array_of(request, "SPEAKER_FRAMES")[0]
    if not len(rows):
        return None
    return SpeakerFrames(_array_of(request, "PROBABILITIES")[0], rows)


def error_response(error: StreamError, request: Any, log: ModelLog) -> Any:
    """The response to a rejected request, which is logged with the id that the client gave it."""
    log.rejection(error, request.correlation_id(), request.request_id())
    code = getattr(pb_utils.TritonError, _STATUS[error.kind])
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))


def responses(
    replies: Sequence[Any], requests: Sequence[Any], log: ModelLog, respond: Callable[[Any, Any], Any]
) -> list[Any]:
    """The responses to a batch: those of `respond` to a reply and its request, and to each rejected request its error.

    Rejected rows of a request are logged.
    """
    made = []
    for reply, request in zip(replies, requests, strict=True):
        if isinstance(reply, StreamError):
            made.append(error_response(reply, request, log))
            continue
        for row, error in getattr(reply, "errors", {}).items():
            log.rejection(error, None, request.request_id(), row)
        made.append(respond(reply, request))
    return made


def ends_process_without_device(execute: _Execute) -> _Execute:
    """Decorates `execute` of a model: a lost device ends the model's process.

    The process could only reject each stream. `penstock serve` finds the process missing and stops the server, or with
    --restart starts it again.
    """

    @wraps(execute)
    def run(model: Any, requests: list[Any]) -> list[Any]:
        try:
            return execute(model, requests)
        except DeviceLostError as error:
            model.log.device_lost(error)
            os._exit(1)  # without finalizers, which would call the device

    return run


@lru_cache(_SHARED_OUTPUTS)
def _shared_output(name: str, shape: tuple[int, ...], dtype: Any, values: tuple[Any, ...] = ()) -> Any:
    """An output that many responses share, already in the memory that Triton copies it from."""
    return array_output(name, _array(values, dtype).reshape(shape))


def release_outputs() -> None:
    """Frees the shared outputs; to be called while Triton's memory exists."""
    _shared_output.cache_clear()


def _number_output(name: str, values: torch.Tensor) -> Any:
    # The view has strides in C order also where a dimension is 1: torch accepts any there, the stub does not.
    return pb_utils.Tensor.from_dlpack(name, to_dlpack(values.reshape(-1).view(values.shape)))


def array_output(name: str, array: np.ndarray) -> Any:
    """An output of numbers, or of texts as UTF-8 bytes in an array of objects."""
    return pb_utils.Tensor(name, array) if array.dtype == np.object_ else _number_output(name, torch.from_numpy(array))


def tensor_output(name: str, value: torch.Tensor) -> Any:
    """An output [1, ...] of a tensor on the host."""
    if not value.numel():  # most requests complete no chunk
        return _shared_output(name, (1, *value.shape), np.float32)
    return _number_output(name, value.unsqueeze(0))


def feature_response(mel: torch.Tensor, ticket: Ticket, signer: TicketSigner) -> Any:
    """MEL [1, C, N, F] float32 and TICKET [1, n] int64."""
    packed = signer.pack(ticket)[np.newaxis]
    return pb_utils.InferenceResponse([tensor_output("MEL", mel), array_output("TICKET", packed)])


def encoded_response(signer: TicketSigner, reply: EncodedRows, request: Any) -> Any:
    """ENCODED [1, T, D] float32 and TICKET [1, n] int64: the request's, with other rows where the reply has them."""
    packed = _array_of(request, "TICKET")
    if reply.rows is not None:
        packed = signer.with_rows(packed[0], reply.rows)[np.newaxis]
    outputs = [tensor_output("ENCODED", reply.encoded), array_output("TICKET", packed)]
    # The pair of `speaker_frames` where there are none.
    outputs.append(_shared_output("PROBABILITIES", (1, 0, 1), np.float32))
    return pb_utils.InferenceResponse([*outputs, _shared_output("SPEAKER_FRAMES", (1, 0, 3), np.int64)])


def speaker_response(frames: SpeakerFrames, request: Any) -> Any:
    """PROBABILITIES and SPEAKER_FRAMES: see `speaker_frames`."""
    pair = zip(("PROBABILITIES", "SPEAKER_FRAMES"), frames, strict=True)
    return pb_utils.InferenceResponse([array_output(name, value[np.newaxis]) for name, value in pair])


def results_response(results: Sequence[StreamResult]) -> Any:
    """All outputs of the s results of one stream's request, each [1, n]; Triton sends those that the request lists."""
    return pb_utils.InferenceResponse(_result_outputs(results))


def batched_response(answers: Mapping[int, Sequence[StreamResult] | StreamError], has_speakers: bool = False) -> Any:
    """The outputs of the results of many rows, with ROW, and the errors of others; answers: by row.

    has_speakers: of a request by `asr_batch_speakers`, which has two outputs more.
    """
    entries = [
        (row, result) for row, results in answers.items() if not isinstance(results, StreamError) for result in results
    ]
    errors = [(row, error) for row, error in answers.items() if isinstance(error, StreamError)]
    results = [result for _, result in entries]
    outputs = _result_outputs(results)
    if has_speakers:
        speakers = [speaker for result in results for speaker in result.word_speakers]
        outputs.append(_output("SPEAKER_COUNTS", np.int32, [len(result.word_speakers) for result in results]))
        outputs.append(_output("WORD_SPEAKERS", np.int32, speakers))
    for name, dtype, values in (
        ("ROW", np.int32, [row for row, _ in entries]),
        ("ERROR_ROWS", np.int32, [row for row, _ in errors]),
        ("ERRORS", np.object_, [str(error) for _, error in errors]),
    ):
        outputs.append(_output(name, dtype, values))
    return pb_utils.InferenceResponse(outputs)


def _result_outputs(results: Sequence[StreamResult]) -> list[Any]:
    outputs = [_output(name, dtype, [value(result) for result in results]) for name, dtype, value in _SINGLE_OUTPUTS]
    counts = [len(getattr(result, field)) for result in results for field in _LISTED_OUTPUTS]
    outputs.append(_output("LIST_COUNTS", np.int32, counts))
    for field, listed in _LISTED_OUTPUTS.items():
        entries = [entry for result in results for entry in getattr(result, field)]
        outputs += [
            array_output(name, _array(map(value, entries), dtype).reshape(1, -1))
            if entries
            else _shared_output(name, (1, 0), dtype)
            for name, dtype, value in listed
        ]
    return outputs


def _output(name: str, dtype: Any, values: list[Any]) -> Any:
    """An output [1, n]; those of a few values are shared, because they repeat."""
    shape = (1, len(values))
    if len(values) <= _SHARED_VALUES:
        return _shared_output(name, shape, dtype, tuple(values))
    return array_output(name, _array(values, dtype).reshape(shape))


def _array(values: Iterable[Any], dtype: Any) -> np.ndarray:
    """Array [n]; texts become UTF-8 bytes in an array of objects, as Triton expects."""
    if dtype is np.object_:
        values = (text.encode() for text in values)
    return np.array(list(values), dtype=dtype)


def _words_of(alternative: Alternative) -> Sequence[Sequence[Any]]:
    """Text, start, end and confidence of each word, and its speaker in a stream with speakers."""
    if alternative.speakers is None:
        return alternative.words
    spoken = zip(alternative.words, alternative.speakers, strict=True)
    return [(*word, speaker or None) for word, speaker in spoken]


class _Output(NamedTuple):
    name: str
    dtype: Any
    value: Callable[[Any], Any]
    """Takes a result, or one entry of one of its lists."""


_SINGLE_OUTPUTS = (
    _Output("SEGMENT", np.int32, lambda result: result.segment),
    _Output("TEXT", np.object_, lambda result: result.text),
    _Output("IS_FINAL", np.bool_, lambda result: result.is_final),
    _Output("AUDIO_PROCESSED", np.float32, lambda result: result.audio_processed_s),
    _Output("LANGUAGE", np.object_, lambda result: result.language),
    _Output("STABLE_CHARS", np.int32, lambda result: result.stable_chars),
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
        _Output("ALTERNATIVE_WORDS", np.object_, lambda one: json.dumps(_words_of(one))),
    ),
}


_NO_LABELS: Mapping[str, str] = MappingProxyType({})
_families: dict[str, Any] = {}
"""By name: metrics that differ in their labels share one. It must live longer than they."""


def make_metric(name: str, description: str, kind: Kind, labels: Mapping[str, str] = _NO_LABELS) -> Metric:
    """A metric on Triton's metrics port."""
    if name not in _families:
        kinds = {"counter": pb_utils.MetricFamily.COUNTER, "gauge": pb_utils.MetricFamily.GAUGE}
        _families[name] = pb_utils.MetricFamily(name=name, description=description, kind=kinds[kind])
    metric: Metric = _families[name].Metric(labels=dict(labels))
    return metric


def open_model(name: str, args: dict[str, str], is_verified: bool = True) -> tuple[ModelLog, Settings, TicketSigner]:
    """Begins `initialize` of a model, with its `args`: checks the process and prepares it as the settings say.

    is_verified: as in `Settings.from_environment`.
    """
    log = ModelLog(name)
    check_single_instance(args)
    check_stub()
    settings = Settings.from_environment(is_verified=is_verified)
    prepare_process(settings.options.threads)
    return log, settings, TicketSigner.shared(settings.runtime_directory)


def warm_up(warm_up_stage: Callable[[int], object], log: ModelLog, args: dict[str, str]) -> None:
    """Ends `initialize` of a model, with its `args`; warm_up_stage: takes the most requests per call of `execute`."""
    warm_up_stage(int(json.loads(args["model_config"])["max_batch_size"]))
    freeze_loaded()
    log.stage("warmed up")


def check_single_instance(args: dict[str, str]) -> None:
    """SettingError if Triton starts the model more than once: a stream's state is in the memory of one instance.

    args: of `initialize`. Triton has replaced KIND_AUTO in it by KIND_GPU with all GPUs of the host.
    """
    config = json.loads(args["model_config"])
    groups = config["instance_group"]
    instances = sum(int(group.get("count", 1)) * max(len(group.get("gpus", ())), 1) for group in groups)
    if instances != 1:
        raise SettingError(
            f"{config['name']}/config.pbtxt: instance_group makes {instances} instances; "
            "accepted: instance_group [ { count: 1, kind: KIND_MODEL } ]"
        )


def check_stub() -> None:
    """SettingError if numbers or texts do not pass through Triton's Python stub unchanged: no request would fail."""
    numbers = torch.tensor([[[0.5, -2.0]]]), torch.tensor([[1 << 40, -7]]), torch.tensor([[True]]), torch.zeros(1, 0)
    for sent in numbers:
        found = _host_values(_number_output("CHECK", sent))
        if found.dtype != sent.dtype or not torch.equal(found, sent):
            raise _stub_error(f"tensors ({sent.tolist()} became {found.tolist()})")
    texts = pb_utils.serialize_byte_tensor(np.array([b"ab", b""], np.object_))
    if texts.tobytes() != b"\2\0\0\0ab\0\0\0\0" or not texts.nbytes == stub_size(texts) == len(texts.tobytes()):
        raise _stub_error("the size of texts")


def _stub_error(what: str) -> SettingError:
    return SettingError(
        f"numpy {np.__version__} and torch {torch.__version__} do not fit Triton's Python stub, which misreads {what}; "
        "accepted: the versions of locks/server.txt, or another Triton server in PENSTOCK_TRITONSERVER"
    )
