"""Errors that reach a user. Each says what was wrong, where, and what is accepted, after a code for programs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum

from penstock_common.errors import cut as cut
from penstock_common.errors import shown as shown
from penstock_common.errors import split_code as split_code


class ErrorCode(Enum):
    """The code in front of every error's message, as in `STREAM_LIMIT: ...`. Codes are stable, messages are not.

    The value is the code's meaning; docs/serving.md says what to do about each.
    """

    STREAM_LIMIT = "the maximum number of streams is open"
    SERVER_DRAINING = "the server is stopping and accepts no new streams"
    STREAM_NOT_OPEN = "the stream was never started, has ended, or was idle for too long"
    STREAM_LOST = "a stage failed on the stream or no longer has its state"
    AUDIO_INVALID = "samples or an audio file cannot be used"
    AUDIO_TOO_LONG = "a stream has more audio than an offline model's server accepts"
    AUDIO_MEMORY_FULL = "the audio of other streams leaves no memory for this stream's"
    OPTION_INVALID = "a request parameter is unknown, wrong, or not accepted at this point of the stream"
    PHRASES_INVALID = "the boosted phrases cannot be used by this model or are too many"
    PHRASE_MEMORY_FULL = "the phrases of other streams leave no memory for this stream's"
    SPEAKERS_NOT_SERVED = "a stream asks for speakers where no speaker model is served, or not by `asr_batch_speakers`"
    REQUEST_INVALID = "a request or row has not the form that `asr` or `asr_batch` accepts"

    SETTING_INVALID = "a flag, an environment variable or an argument has a wrong value or is missing"
    MODEL_NOT_FOUND = "the model does not exist locally or on the hub"
    CHECKPOINT_INVALID = "a checkpoint is unsafe, broken or not supported"
    LM_INVALID = "a language model file is broken or for another vocabulary"
    GRAPH_INVALID = "a decoding graph cannot be built, is broken or for another model"
    MANIFEST_INVALID = "a manifest or one of its lines cannot be used"
    CORPUS_INVALID = "training or held-out text or speech cannot be used"
    OUTPUT_FAILED = "a result cannot be written"
    PACKAGE_MISSING = "an optional package is not installed"
    PORT_UNAVAILABLE = "a port is in use or cannot be bound"
    TRITON_UNAVAILABLE = "no usable tritonserver was found"
    SERVER_FAILED = "the server did not start, has ended or does not answer"
    CUDA_FAILED = "a CUDA graph cannot be captured or run, or the CUDA device has failed"
    RUN_FAILED = "an evaluation, a benchmark or a load test has no result"

    def __str__(self) -> str:
        return self.name


class PenstockError(Exception):
    """Base class of the errors that Penstock raises deliberately. The text can be shown to a user.

    `str` is "CODE: message". Every subclass has a code; this class is only for catching.
    """

    code: ErrorCode

    def __init__(self, message: str):
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@contextmanager
def naming(thing: object, *kinds: type[PenstockError]) -> Iterator[None]:
    """Puts the name of what is read, such as a file, in front of the messages of these kinds of errors."""
    try:
        yield
    except kinds as error:
        raise type(error)(f"{thing}: {error.message}") from error


class SettingError(PenstockError):
    """A flag, an environment variable or an argument is wrong or missing."""

    code = ErrorCode.SETTING_INVALID


class CheckpointError(PenstockError):
    """A checkpoint is unsafe, broken, or needs something that is not supported."""

    code = ErrorCode.CHECKPOINT_INVALID


class ModelNotFoundError(CheckpointError):
    """No model at the given place."""

    code = ErrorCode.MODEL_NOT_FOUND


class AudioError(PenstockError):
    """An audio file or an array of samples cannot be used."""

    code = ErrorCode.AUDIO_INVALID


class LanguageModelError(PenstockError):
    """A language model is broken or for another vocabulary."""

    code = ErrorCode.LM_INVALID


class GraphError(PenstockError):
    """A decoding graph cannot be built, is broken or for another model."""

    code = ErrorCode.GRAPH_INVALID


class ManifestError(PenstockError):
    """A manifest cannot be used; the text names the file and, if known, the line and the field."""

    code = ErrorCode.MANIFEST_INVALID


class CorpusError(PenstockError):
    """Text or speech to train or measure with cannot be used."""

    code = ErrorCode.CORPUS_INVALID


class OutputError(PenstockError):
    """A file of results cannot be written."""

    code = ErrorCode.OUTPUT_FAILED


class PackageError(PenstockError):
    """An optional package is not installed."""

    code = ErrorCode.PACKAGE_MISSING


class PortError(PenstockError):
    """A port is in use or cannot be bound."""

    code = ErrorCode.PORT_UNAVAILABLE


class TritonInstallError(PenstockError):
    """No usable tritonserver was found."""

    code = ErrorCode.TRITON_UNAVAILABLE


class ServerError(PenstockError):
    """A server did not start, has ended or does not answer."""

    code = ErrorCode.SERVER_FAILED


class ServerCrashError(ServerError):
    """A signal has ended a server before it was ready: nothing that it was given."""


class DeviceLostError(PenstockError):
    """No call of this process can use its CUDA device again; a new process can. Never the error of one stream."""

    code = ErrorCode.CUDA_FAILED


class RunError(PenstockError):
    """An evaluation, a benchmark or a load test has no result."""

    code = ErrorCode.RUN_FAILED


class StreamErrorKind(Enum):
    """Why a request for one stream was rejected; the names are those of the gRPC status codes."""

    INVALID_ARGUMENT = "invalid argument"
    NOT_FOUND = "not found"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"


STREAM_ERROR_KINDS: Mapping[ErrorCode, StreamErrorKind] = {
    ErrorCode.STREAM_LIMIT: StreamErrorKind.UNAVAILABLE,
    ErrorCode.SERVER_DRAINING: StreamErrorKind.UNAVAILABLE,
    ErrorCode.STREAM_NOT_OPEN: StreamErrorKind.NOT_FOUND,
    ErrorCode.STREAM_LOST: StreamErrorKind.INTERNAL,
    ErrorCode.AUDIO_INVALID: StreamErrorKind.INVALID_ARGUMENT,
    ErrorCode.AUDIO_TOO_LONG: StreamErrorKind.INVALID_ARGUMENT,
    ErrorCode.AUDIO_MEMORY_FULL: StreamErrorKind.UNAVAILABLE,
    ErrorCode.OPTION_INVALID: StreamErrorKind.INVALID_ARGUMENT,
    ErrorCode.PHRASES_INVALID: StreamErrorKind.INVALID_ARGUMENT,
    ErrorCode.PHRASE_MEMORY_FULL: StreamErrorKind.UNAVAILABLE,
    ErrorCode.SPEAKERS_NOT_SERVED: StreamErrorKind.INVALID_ARGUMENT,
    ErrorCode.REQUEST_INVALID: StreamErrorKind.INVALID_ARGUMENT,
}
"""The codes that a server answers requests with."""


class StreamError(PenstockError):
    """One request of one stream is rejected; every other stream continues."""

    def __init__(self, code: ErrorCode, message: str):
        super().__init__(message)
        self.code = code

    @property
    def kind(self) -> StreamErrorKind:
        """The kind of status that a server answers with."""
        return STREAM_ERROR_KINDS[self.code]
