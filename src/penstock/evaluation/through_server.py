"""Utterances through a running server, many streams at once and as fast as it takes them. Needs penstock-client."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import PenstockError
from penstock.evaluation.manifest import Utterance
from penstock.evaluation.outcome import Outcome

if TYPE_CHECKING:
    from penstock_client import Client

_PIECE_MS = 1000
_SILENCE_S = 60.0
"""How long the server may leave a stream unanswered: it is under full load."""
_FULL_WAIT_S = 60.0
"""How long a stream waits for a slot, where the server has fewer than we open streams or others use it too."""
_RETRY_S = 0.1


def connect(url: str) -> "Client":
    """A client whose server has answered an empty stream. Raises PenstockError where there is none, or no client."""
    try:
        from penstock_client import Client, ClientError
    except ImportError as error:
        raise PenstockError(
            f"--url needs the package penstock-client, which is the folder client/ of the source ({error})"
        ) from error
    try:
        client = Client(url, timeout_s=_SILENCE_S)
    except ValueError as error:
        raise PenstockError(f"--url: {error}") from error
    try:
        _transcribe(client, np.zeros(0, np.float32))
    except ClientError as error:
        client.close()
        raise PenstockError(str(error)) from error
    return client


def recognise_through_server(client: "Client", utterances: Sequence[Utterance], streams: int) -> Iterator[Outcome]:
    """Outcomes as they come in, `streams` of them under way at any time.

    A stream that fails gives an outcome with its error; a server that is gone raises PenstockError.
    """
    from penstock_client import ServerUnreachableError

    with ThreadPoolExecutor(streams) as pool:
        jobs = [pool.submit(_recognise, client, index, utterance) for index, utterance in enumerate(utterances)]
        try:
            for job in as_completed(jobs):
                yield job.result()
        except ServerUnreachableError as error:
            raise PenstockError(str(error)) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # those under way end by themselves


def _recognise(client: "Client", index: int, utterance: Utterance) -> Outcome:
    from penstock_client import ClientError, ServerUnreachableError

    try:
        return Outcome(index, _transcribe(client, str(utterance.audio)))
    except ServerUnreachableError:
        raise
    except ClientError as error:
        return Outcome(index, "", f"{utterance.audio}: {str(error).removeprefix(f'{utterance.audio}: ')}")


def _transcribe(client: "Client", audio: str | np.ndarray) -> str:
    """Text of a file or of samples at 16 kHz; waits for a slot where the server is full."""
    from penstock_client import ServerFullError

    deadline = time.monotonic() + _FULL_WAIT_S
    while True:
        try:
            return client.transcribe(audio, chunk_ms=_PIECE_MS).text
        except ServerFullError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)
