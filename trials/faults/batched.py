"""Fault trials of batched clients and requests. Each returns its figures and raises AssertionError where it failed.

Streams of `asr_batch` also take part in the other trials, among the other streams and wherever the protocol varies.
"""

import itertools
import random
import time
from collections import Counter
from typing import NamedTuple

import numpy as np
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from penstock_client.batched.rows import END, FINALIZE, START, Row
from trials.faults.streams import SPARE_STREAMS, wait_until_expired
from trials.server.killed_clients import stream_batched_until_killed
from trials.server.raw_stream import (
    BatchedConnection,
    BatchedReply,
    Reply,
    errors_of,
    inputs_of,
    replies_of,
    request_arrays,
)
from trials.server.recordings import (
    NO_SAMPLES,
    REQUEST_SAMPLES,
    Histories,
    History,
    KilledClient,
    Recording,
    rejection,
)
from trials.server.resources import Figures, beside_others, read_metrics, wait_until_free
from trials.server.running import RunningServer

_GOOD_STREAMS = 4
_ONE_CHUNK = 12_000
"""Samples that complete a chunk of the model."""
_MAX_INT64 = 2**63 - 1
_MAX_ROWS = 1024
_SILENCE = np.zeros(160, np.float32)
_BAD_OPTIONS = ("{", "[]", "7", "\0", '{"decoder": "best"}', '{"beam_size": 1e400}', '{"unknown": 1}', "[" * 100_000)


@beside_others
def killed_batched_clients(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """Batched clients end by SIGKILL with all slots but a few in use; all their streams expire."""
    streams, freed_s = max(1, server.max_streams - SPARE_STREAMS), []
    for number in range(count):
        expired = read_metrics(server)["streams_expired_total"]
        samples = recordings[number % len(recordings)].samples
        client = KilledClient(server.url("grpc"), streams, samples, stream_batched_until_killed)
        client.wait_until_going()
        client.kill()
        freed_s.append(wait_until_expired(server, expired + streams, time.monotonic()))
    assert max(freed_s) < 1.0, freed_s
    return {"clients": count, "streams": count * streams, "freed_after_timeout_s_max": max(freed_s)}


@beside_others
def lost_requests(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """A later model rejects a request with the starts of many streams as a whole: they stay open until their ENDs.

    Then their slots are free at once. The request is sent through the models one by one, and altered on its way.
    """
    streams, freed_s = max(1, server.max_streams - SPARE_STREAMS), []
    with (
        triton_grpc.InferenceServerClient(server.url("grpc")) as client,
        BatchedConnection(server.url("grpc"), "lost") as connection,
    ):
        for number, broken in zip(range(count), itertools.cycle(("encoder", "decoder")), strict=False):
            samples = recordings[number % len(recordings)].samples[:_ONE_CHUNK]
            wait_until_free(server, server.idle_s, streams + 1)
            _start_in_vain(client, [Row(i, samples, START) for i in range(1, streams + 1)], broken)
            assert read_metrics(server)["streams_live"] >= streams
            ended = time.monotonic()
            reply = connection.ask([Row(i, NO_SAMPLES, END) for i in range(1, streams + 1)])
            errors = errors_of(reply)
            assert len(errors) == streams and all("STREAM_LOST: " in error for error in errors.values()), errors
            wait_until_free(server, server.idle_s, server.max_streams - 1)
            freed_s.append(time.monotonic() - ended)
    assert max(freed_s) < 1.0, freed_s
    return {"requests": count, "streams": count * streams, "freed_s_max": max(freed_s)}


def _start_in_vain(client: triton_grpc.InferenceServerClient, rows: list[Row], broken: str) -> None:
    """Sends rows to `features` and on to the model `broken`, which rejects them because their last frame is missing."""
    found = client.infer("features", inputs_of(request_arrays(rows, as_pcm=False)), parameters={"client": "lost"})
    ticket, frames = {"TICKET": found.as_numpy("TICKET")}, {"MEL": found.as_numpy("MEL")}
    if broken == "decoder":
        frames = {"ENCODED": client.infer("encoder", inputs_of(frames | ticket)).as_numpy("ENCODED")}
    fewer = {name: values[:, :-1] for name, values in frames.items()}
    error = rejection(lambda: client.infer(broken, inputs_of(fewer | ticket)))
    assert "are not those of the ticket" in error, error


class _Sent(NamedTuple):
    """A row of a request, and how it must be answered."""

    row: Row
    code: str = ""
    """The code of its rejection; empty for a good row."""
    choice: int | None = None
    """An index of options that a good row could not have."""
    stream: "_GoodStream | None" = None


class _GoodStream:
    """A stream that sends a row with every request."""

    def __init__(self, number: int, recording: Recording, history: History):
        self.number = number
        self.is_steady = self.is_over = False
        """The row sent last neither starts nor ends it; it ends it."""
        self._samples, self._history, self._place = recording.samples, history, 0

    def next_row(self, chance: random.Random) -> Row:
        """Its next samples, any number of them."""
        start = self._place
        self._place = min(start + chance.choice([160, REQUEST_SAMPLES, 8000]), len(self._samples))
        self.is_over = self._place == len(self._samples)
        self.is_steady = start > 0 and not self.is_over
        return Row(self.number, self._samples[start : self._place], START * (start == 0) + END * self.is_over)

    def take(self, reply: Reply | None) -> None:
        """Adds the reply, if there was a new result."""
        self._history.replies += [] if reply is None else [reply]


@beside_others
def hostile_rows(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """Requests with good and bad rows in any order: each bad row is rejected alone, with its code.

    Between them are requests that are rejected whole, of the same client and of another one with the same numbers.
    """
    chance, outcomes, histories = random.Random(count), Counter(), Histories()
    numbers, live = itertools.count(1), []
    with (
        BatchedConnection(server.url("grpc"), "good") as connection,
        BatchedConnection(server.url("grpc"), "bad") as other,
    ):
        for _ in range(count):
            while len(live) < _GOOD_STREAMS:
                number, recording = next(numbers), chance.choice(recordings)
                live.append(_GoodStream(number, recording, histories.open(f"good-{number}", recording.expected)))
            sent = [_Sent(stream.next_row(chance), stream=stream) for stream in live]
            open_numbers = [stream.number for stream in live if stream.is_steady]
            sent += [_bad_row(chance, open_numbers) for _ in range(chance.randint(0, 6))]
            chance.shuffle(sent)
            connection.send(_arrays(sent))
            outcomes += _check_answers(sent, connection.receive())
            live = [stream for stream in live if not stream.is_over]
            for one in (connection, other):
                code, arrays, parameters = _bad_request(chance, open_numbers)
                one.send(arrays, parameters)
                error = one.receive()
                assert isinstance(error, InferenceServerException) and code in str(error), (code, error)
                outcomes["rejected whole"] += 1
        while live:
            reply = connection.ask([stream.next_row(chance) for stream in live])
            found = replies_of(reply)
            for place, stream in enumerate(live):
                stream.take(found.get(place))
            live = [stream for stream in live if not stream.is_over]
    histories.check()
    return {**outcomes, "good_streams": histories.whole}


def _arrays(sent: list[_Sent]) -> dict[str, np.ndarray]:
    arrays = request_arrays([one.row for one in sent], as_pcm=False)
    for place, one in enumerate(sent):
        if one.choice is not None:
            arrays["ROWS"][0, place, 3] = one.choice
    return arrays


def _check_answers(sent: list[_Sent], answer: BatchedReply) -> Counter:
    """Counts the rejected rows by code; gives the good streams their replies."""
    assert not isinstance(answer, InferenceServerException), answer
    replies, errors = replies_of(answer), errors_of(answer)
    codes = {place: one.code for place, one in enumerate(sent) if one.code}
    assert {place: error.partition(":")[0] for place, error in errors.items()} == codes, (sent, errors)
    assert not replies.keys() & codes.keys(), replies
    for place, one in enumerate(sent):
        if one.stream is not None:
            one.stream.take(replies.get(place))
    return Counter(codes.values())


def _bad_row(chance: random.Random, open_numbers: list[int]) -> _Sent:
    """A row that must be rejected; `open_numbers`: of streams that must not notice."""
    unknown = chance.choice([10**6, _MAX_INT64])
    known = chance.choice([*open_numbers, unknown])
    nan, loud, long = np.full(9, np.nan, np.float32), np.full(9, 3.0, np.float32), np.zeros(480_001, np.float32)
    flags = chance.choice([0, END, FINALIZE, END + FINALIZE])
    kinds = [
        _Sent(Row(chance.choice([0, -1, -_MAX_INT64 - 1]), _SILENCE, chance.choice([0, START])), "REQUEST_INVALID"),
        _Sent(Row(known, _SILENCE, chance.choice([-1, 8, _MAX_INT64])), "REQUEST_INVALID"),
        _Sent(Row(known, _SILENCE, START), "REQUEST_INVALID", choice=chance.choice([-2, 100, _MAX_INT64])),
        _Sent(Row(unknown, chance.choice([nan, loud, long]), START), "AUDIO_INVALID"),
        _Sent(Row(unknown, _SILENCE, START, chance.choice(_BAD_OPTIONS)), "OPTION_INVALID"),
        _Sent(Row(unknown, _SILENCE, flags, chance.choice([None, "{}"])), "STREAM_NOT_OPEN"),
    ]
    if known in open_numbers:
        not_last = chance.choice([0, FINALIZE])
        kinds += [
            _Sent(Row(known, chance.choice([nan, loud, long]), not_last), "AUDIO_INVALID"),
            _Sent(Row(known, _SILENCE, not_last, "{}"), "OPTION_INVALID"),
            _Sent(Row(known, _SILENCE, START), "REQUEST_INVALID"),
        ]
    return chance.choice(kinds)


def _bad_request(
    chance: random.Random, open_numbers: list[int]
) -> tuple[str, dict[str, np.ndarray], dict[str, str | bool] | None]:
    """Code, arrays and parameters (None: the right ones) of a request that is rejected whole; it would end a stream."""
    good = request_arrays([Row(chance.choice([*open_numbers, 10**6]), _SILENCE, END)], as_pcm=False)
    row = good["ROWS"][0, 0].tolist()
    rows = {
        "none": np.zeros((1, 0, 4), np.int64),
        "too many": np.tile(np.array([row[0], 0, END, -1]), (1, _MAX_ROWS + 1, 1)),
        "sum": good["ROWS"] + [0, chance.choice([1, -1, _MAX_INT64 - 10_000]), 0, 0],
        "negative": np.array([[[row[0], -1, END, -1], [row[0], len(_SILENCE) + 1, END, -1]]]),
        "overflow": np.array([[[row[0], _MAX_INT64, END, -1]] * 2 + [[row[0], len(_SILENCE) + 2, END, -1]]]),
    }
    kinds = [("REQUEST_INVALID", good | {"ROWS": values}, None) for values in rows.values()]
    kinds += [
        ("REQUEST_INVALID", good | {"PCM": np.zeros((1, len(_SILENCE)), np.int16)}, None),
        ("REQUEST_INVALID", {name: good[name] for name in ("ROWS", "OPTIONS")}, None),
        ("REQUEST_INVALID", {name: np.repeat(values, 2, axis=0) for name, values in good.items()}, None),
        ("unexpected shape", good | {"ROWS": np.zeros((1, 1, 5), np.int64)}, None),
        ("OPTION_INVALID", good, {}),
        ("OPTION_INVALID", good, {"client": chance.choice(["", "x" * 65, "x" * 100_000, True])}),
        ("OPTION_INVALID", good, {"client": "good", "finalize": True}),
    ]
    return chance.choice(kinds)
