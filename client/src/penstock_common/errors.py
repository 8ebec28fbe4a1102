"""Exceptions of a client and of audio files. Each text is one line: a code, what it concerns, and the reason."""

import re

StreamId = int | str
_CODE = re.compile(r"^(?:in ensemble '[^']*', )?(?:([A-Z]+(?:_[A-Z]+)+): )?")
_MAX_SHOWN_CHARACTERS = 60


class ClientError(Exception):
    """Base class of these errors. `str` is "CODE: text": codes are stable, texts are not."""

    code: str
    of_speakers = False
    """True for an error of the speaker model: streams that do not ask for speakers are not concerned."""

    def __init__(self, text: str):
        super().__init__(text)
        self.text = text
        """The text without the code."""

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


class AudioError(ClientError):
    """An audio file is unusable or truncated; the text starts with its path."""

    code = "AUDIO_INVALID"

    def __init__(self, path: object, reason: str):
        super().__init__(f"{path}: {reason}")


class PackageError(ClientError):
    """Audio files cannot be read: the package soundfile or its library libsndfile is not installed."""

    code = "PACKAGE_MISSING"


class MicrophoneError(ClientError):
    """The microphone is unusable: its package or a device is missing, or the device fails."""

    code = "MICROPHONE_FAILED"


class ServerUnreachableError(ClientError):
    """No server answers at the address in the chosen protocol."""

    code = "SERVER_UNREACHABLE"

    def __init__(self, url: str, reason: str):
        self.url = url
        self.reason = one_line(reason)
        super().__init__(f"cannot reach a server at {url}: {self.reason}")


class ServerReplyError(ClientError):
    """The reply to a question about the server itself is not a Penstock server's."""

    code = "REPLY_INVALID"


class FilesOnlyError(ClientError):
    """Live audio for an offline model without the option `window`: it recognizes whole files then."""

    code = "FILES_ONLY"

    def __init__(self, model: str):
        super().__init__(
            f"live audio is not accepted by model {model!r}; accepted: files, or live audio with the option window=live"
        )


class OptionError(ClientError):
    """An option of a stream does not suit its audio."""

    code = "OPTION_INVALID"


class StreamError(ClientError):
    """One stream has failed and accepts no more audio. Other streams are not affected.

    `message` is the reason, without the stream's name. `code` is the code that the server sent, or TRITON_ERROR for an
    error of Triton itself, which has no codes.
    """

    code = "TRITON_ERROR"

    def __init__(self, stream_id: StreamId, message: str, code: str | None = None):
        if code:
            self.code = code
        message = one_line(message)
        named = f"stream {stream_id!r}"
        super().__init__(message if stream_id == "" or named in message else f"{named}: {message}")
        self.stream_id = stream_id
        self.message = message


class SpeakersNotServedError(StreamError):
    """The stream asks for speakers, and the server has no speaker model."""

    code = "SPEAKERS_NOT_SERVED"
    of_speakers = True

    def __init__(self, stream_id: StreamId = "", message: str = "", code: str | None = None):
        super().__init__(stream_id, message or "speakers are not served; start the server with --speakers BUNDLE", code)


class ServerFullError(StreamError):
    """The server has no free slot for another stream. Retry later."""

    code = "STREAM_LIMIT"


class ServerDrainingError(StreamError):
    """The server is stopping: it rejects new streams, and cuts off those that do not end in its drain time."""

    code = "SERVER_DRAINING"


class StreamNotOpenError(StreamError):
    """The stream is not open on the server: never started, ended, or expired after its idle timeout."""

    code = "STREAM_NOT_OPEN"


class ConnectionLostError(StreamError):
    """The connection to the server was lost during the stream."""

    code = "CONNECTION_LOST"


class ReplyTimeoutError(StreamError):
    """The server did not reply to audio of this stream within the timeout."""

    code = "REPLY_TIMEOUT"


class ProtocolError(StreamError):
    """The reply does not come from a Penstock server."""

    code = "REPLY_INVALID"


class StreamClosedError(StreamError):
    """The stream was finished, cancelled or closed by the client: it takes no audio and has no more results."""

    code = "STREAM_CLOSED"


def one_line(text: object) -> str:
    """The text with every run of white space replaced by one blank."""
    return " ".join(str(text).split())


def split_code(text: str) -> tuple[str | None, str]:
    """The code in front of an error's text (None without one) and the message, without Triton's "in ensemble"."""
    _, code, message = _CODE.split(text, maxsplit=1)
    return code, message


def shown(value: object) -> str:
    """A wrong value for an error's text, whatever it is and however long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no numbers of thousands of digits
        text = "a value too long to write"
    return cut(text)


def cut(text: str, max_characters: int = _MAX_SHOWN_CHARACTERS) -> str:
    """A user's text for an error's, its end left out where it is long."""
    return text if len(text) <= max_characters else f"{text[:max_characters]}..."
