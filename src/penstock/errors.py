"""Errors that reach a user. Each says what was wrong, where, and what is accepted."""

from enum import Enum


class PenstockError(Exception):
    """Base of every error that Penstock raises on purpose; its text is fit to be shown to a user."""


class CheckpointError(PenstockError):
    """A checkpoint is unsafe, broken, or asks for something that is not supported."""


class AudioError(PenstockError):
    """An audio file or an array of samples cannot be used."""


class StreamErrorKind(Enum):
    """Why a request for one stream was refused; the names are those of the gRPC status codes."""

    INVALID_ARGUMENT = "invalid argument"
    NOT_FOUND = "not found"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"


class StreamError(PenstockError):
    """One request of one stream is refused; every other stream goes on.

    `kind` tells a server which status to answer with.
    """

    def __init__(self, kind: StreamErrorKind, message: str):
        super().__init__(message)
        self.kind = kind


_MOST_SHOWN_CHARACTERS = 60


def shown(value: object) -> str:
    """A wrong value for an error's text, whatever it is and however long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no numbers of thousands of digits
        text = "a value too long to write"
    return cut(text)


def cut(text: str, most_characters: int = _MOST_SHOWN_CHARACTERS) -> str:
    """A user's text for an error's, its end left out where it is long."""
    return text if len(text) <= most_characters else f"{text[:most_characters]}..."
