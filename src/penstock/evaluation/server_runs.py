"""Runs of an evaluation through a running server."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Lock
from types import MappingProxyType
from typing import Any

import numpy as np

from penstock.errors import AudioError, ErrorCode, ServerError, SettingError
from penstock.evaluation.manifest import Utterance
from penstock.evaluation.runs import Outcome
from penstock.frontend.audio_file import AudioSource
from penstock_client import Client, ConnectionOptions
from penstock_common.errors import ClientError, ServerFullError, ServerUnreachableError
from penstock_common.options import PhraseError, StreamOptions
from penstock_common.samples import SAMPLE_RATE_HZ
from penstock_common.server_info import ServerInfo

_REQUEST_MS = 1000
_SERVER_TIMEOUT_S = 60.0
"""Without an answer for this time a stream fails. It is long because the server is under full load."""
_SLOT_WAIT_S = 24 * 3600.0
"""Time for which a stream waits while the server is full."""


def connect(url: str, on_full: Callable[[], None] = lambda: None) -> Client:
    """A client whose server has answered; its streams wait for a slot while the server is full.

    on_full: called if the server is full now. Raises PenstockError.
    """
    try:
        with Client(url, timeout_s=_SERVER_TIMEOUT_S) as probe:
            probe.transcribe(np.zeros(0, np.float32))
    except ValueError as error:
        raise SettingError(f"--url: {error}") from error
    except ServerFullError:
        on_full()
    except ClientError as error:
        raise ServerError(error.text) from error
    return Client(url, timeout_s=_SERVER_TIMEOUT_S, connection_options=ConnectionOptions(wait_for_slot_s=_SLOT_WAIT_S))


def recognize_through_server(
    client: Client,
    utterances: Sequence[Utterance],
    streams: int,
    has_languages: bool = False,
    more_options: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Outcome]:
    """Yields outcomes as they complete, with `streams` concurrent streams.

    has_languages: those of the utterances are sent. more_options: fields of the client's `StreamOptions`.
    A failed stream yields an outcome with its error. Raises ServerError for an unreachable server.
    """
    source, one_at_a_time = AudioSource(SAMPLE_RATE_HZ), Lock()

    def audio_of(utterance: Utterance) -> str | np.ndarray:
        with one_at_a_time:  # so that the parts of a file share its decoder
            return str(utterance.audio) if utterance.offset_s is None else source.read(utterance.part)

    pool = ThreadPoolExecutor(streams)  # not a context manager, which would wait for the running streams
    jobs = [
        pool.submit(_recognize, client, index, utterance, audio_of, has_languages, more_options)
        for index, utterance in enumerate(utterances)
    ]
    try:
        for job in as_completed(jobs):
            yield job.result()
    except ServerUnreachableError as error:
        raise ServerError(error.text) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # running streams end with the client
        with one_at_a_time:
            source.close()


def server_info(client: Client) -> ServerInfo:
    """The model and the offer of the server; raises ServerError."""
    try:
        return client.server_info()
    except ClientError as error:
        raise ServerError(error.text) from error


def _recognize(
    client: Client,
    index: int,
    utterance: Utterance,
    audio_of: Callable[[Utterance], str | np.ndarray],
    has_languages: bool,
    more_options: Mapping[str, Any],
) -> Outcome:
    try:
        language, phrases = utterance.language if has_languages else None, list(utterance.boosted_phrases)
        options = StreamOptions(boosted_phrases=phrases, language=language, **more_options)
        return Outcome(index, client.transcribe(audio_of(utterance), request_ms=_REQUEST_MS, options=options).text)
    except AudioError as error:
        return Outcome(index, "", str(error))
    except ServerUnreachableError:
        raise
    except PhraseError as error:
        return Outcome(index, "", f"{ErrorCode.PHRASES_INVALID}: {utterance.part}: {error}")
    except ClientError as error:
        text = error.text.removeprefix(f"{utterance.audio}: ")
        return Outcome(index, "", f"{error.code}: {utterance.part}: {text}")
