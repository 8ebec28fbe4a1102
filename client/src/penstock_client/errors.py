"""Errors that reach a user. Each is one line that names what it is about: a file, a server, or a stream."""

StreamId = int | str


class ClientError(Exception):
    """Base of every error that this package raises on purpose; its text is fit to be shown to a user."""


class AudioError(ClientError):
    """An audio file cannot be used; the text starts with its path."""

    def __init__(self, path: object, reason: str):
        super().__init__(f"{path}: {reason}")


class MicrophoneError(ClientError):
    """The microphone cannot be used: its package or a device is missing, or the device fails."""


class ServerUnreachableError(ClientError):
    """Nothing answers at the server's address, or not in the protocol that was asked for."""

    def __init__(self, url: str, reason: str):
        super().__init__(f"cannot reach a server at {url}: {one_line(reason)}")
        self.url = url


class StreamError(ClientError):
    """One stream has failed, and takes no more audio; other streams are not affected.

    `message` is what the server said, where it was the server that refused.
    """

    def __init__(self, stream_id: StreamId, message: str):
        message = one_line(message)
        named = f"stream {stream_id!r}"
        super().__init__(message if named in message else f"{named}: {message}")
        self.stream_id = stream_id
        self.message = message


class ServerFullError(StreamError):
    """The server has no room for another stream now; trying again later is worthwhile."""


class StreamNotOpenError(StreamError):
    """The server does not know this stream (any more): never started, ended, or silent for too long."""


class ConnectionLostError(StreamError):
    """The server went away in the middle of the stream."""


class ReplyTimeoutError(StreamError):
    """The server has had audio of this stream for longer than the time limit without a sign of life."""


class ProtocolError(StreamError):
    """The server's reply is not what a Penstock server sends."""


class StreamClosedError(StreamError):
    """The stream was finished, cancelled or closed on this side, so it takes no audio or has no more results."""


def one_line(text: object) -> str:
    """The text without line breaks or runs of blanks."""
    return " ".join(str(text).split())
