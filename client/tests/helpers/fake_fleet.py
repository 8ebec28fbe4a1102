"""Servers of `asr_batch` whose words are the audio's own, wherever a stream begins: for streams that move."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from client.tests.helpers.fake_batch import joined, samples_of
from client.tests.helpers.fake_servers import GrpcServer
from client.tests.helpers.fake_speakers import FakeSpeakers
from client.tests.helpers.fakes import FakeRecognizer, RejectionError, texts

BLOCK, CHUNK = 800, 1600
_SCALE = 4096
_START, _END, _FINALIZE = 1, 2, 4
_ENDPOINT_CHUNKS = 2


def speech(*numbers: int) -> np.ndarray:
    """A block of 50 ms per number: the word "wN", or silence for 0."""
    return np.repeat(np.array(numbers, np.float32) / _SCALE, BLOCK)


@dataclass
class _Stream:
    options: dict
    audio: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    first: int = 0
    """Samples before the current segment's."""
    done: int = 0
    """Samples of the chunks that are recognized."""
    segment: int = 0
    told: int = 0
    """Words of the segment that were told."""


class ContentBatch:
    """Answers requests.

    Two silent chunks after a word end a segment with `endpoint_silence_ms`, 40 without one with
    `endpoint_no_speech_ms`, and 60 with `endpoint_longest_s`.
    """

    def __init__(self, recognizer: FakeRecognizer, speakers: FakeSpeakers):
        self.recognizer, self.speakers = recognizer, speakers
        self.streams: dict[tuple[str, int], _Stream] = {}
        self.rows: list[tuple[int, int, int]] = []
        """(number, samples, flags) of all rows but probes."""
        self.starts: list[dict] = []
        """Options of all starts but probes."""
        self.probes = 0
        self.is_draining = False
        self.withheld = 1
        """Newest words of a partial result that may change: they are not told yet."""
        self.before_row: Callable[[int, int], None] = lambda samples, flags: None

    def answer(self, client: str, tensors: dict[str, np.ndarray], model: str = "asr_batch") -> dict[str, np.ndarray]:
        (rows,) = tensors["ROWS"]
        has_speakers = self.speakers.check(model, rows)
        audio = samples_of(tensors)
        entries, numbers, errors = [], [], {}
        for i, (number, samples, flags, options) in enumerate(rows.tolist()):
            part, audio = audio[:samples], audio[samples:]
            chosen = tensors["OPTIONS"][options] if options >= 0 else {}
            try:
                self.speakers.take((client, number), part, flags, chosen, has_speakers)
                found = self._row((client, number), part, flags, chosen)
            except RejectionError as error:
                errors[i] = str(error)
                self.speakers.end((client, number), _END)
                continue
            found = [self.speakers.label((client, number), entry) for entry in found]
            self.speakers.end((client, number), flags)
            entries += found
            numbers += [i] * len(found)
        return joined(entries, numbers, errors)

    def _row(self, name, part: np.ndarray, flags: int, options: dict) -> list[dict]:
        is_probe = flags & _START and flags & _END and not len(part)
        if is_probe:
            self.probes += 1
        else:
            self.before_row(len(part), flags)
            self.rows.append((name[1], len(part), flags))
        if flags & _START:
            self._start(name, options)
            if not is_probe:
                self.starts.append(options)
        if name not in self.streams:
            raise RejectionError("STREAM_NOT_OPEN: the stream is not open")
        if not np.isfinite(part).all():
            raise RejectionError("AUDIO_INVALID: samples are not finite")
        stream = self.streams[name]
        stream.audio = np.concatenate([stream.audio, part])
        found = self._chunks(stream)
        if flags & (_END | _FINALIZE):
            found.append(self._result(stream, len(stream.audio), is_final=True))
        if flags & _END:
            del self.streams[name]
        return found

    def _start(self, name, options: dict) -> None:
        if self.is_draining:
            raise RejectionError("SERVER_DRAINING: the server is stopping")
        if name in self.streams:
            raise RejectionError(f"REQUEST_INVALID: stream {name} is open; accepted: START once")
        if len(self.streams) >= self.recognizer.max_streams:
            raise RejectionError("STREAM_LIMIT: all slots are taken")
        if options.get("lm_weight") and self.recognizer.server_parameters["has_language_model"] != "true":
            raise RejectionError("OPTION_INVALID: lm_weight is 1, but there is no language model")
        self.streams[name] = _Stream(options)

    def _chunks(self, stream: _Stream) -> list[dict]:
        found = []
        warm_up = stream.options.get("warm_up_chunks", 0) * CHUNK
        while stream.done + CHUNK <= len(stream.audio):
            stream.done += CHUNK
            is_final = self._is_endpoint(stream) or stream.done == warm_up
            if is_final or self._changes(stream):
                entry = self._result(stream, stream.done, is_final)
                if stream.done > warm_up:
                    found.append(entry)
        return found

    def _is_endpoint(self, stream: _Stream) -> bool:
        words = heard(stream, stream.done)
        chunks = (stream.done - stream.first) // CHUNK
        if not words:
            return bool(stream.options.get("endpoint_no_speech_ms")) and chunks >= 40
        if stream.options.get("endpoint_longest_s") and chunks >= 60:
            return True
        silence = stream.audio[max(stream.first, stream.done - _ENDPOINT_CHUNKS * CHUNK) : stream.done]
        return bool(stream.options.get("endpoint_silence_ms")) and len(silence) and not silence.any()

    def _changes(self, stream: _Stream) -> bool:
        return len(heard(stream, stream.done)) > stream.told

    def _result(self, stream: _Stream, end: int, is_final: bool) -> dict:
        words = heard(stream, end)
        complete = words if is_final else words[: max(0, len(words) - self.withheld)]
        new = complete[stream.told :]
        entry = {
            "SEGMENT": np.array([[stream.segment]], np.int32),
            "TEXT": texts([" ".join(text for text, _ in words)]),
            "IS_FINAL": np.array([[is_final]]),
            "AUDIO_PROCESSED": np.array([[end / 16_000]], np.float32),
            "LANGUAGE": texts([""]),
            "WORDS": texts([text for text, _ in new]),
            "WORD_START_MS": np.array([[start for _, start in new]], np.int32).reshape(1, -1),
            "WORD_END_MS": np.array([[start + 50 for _, start in new]], np.int32).reshape(1, -1),
            "WORD_CONFIDENCE": np.array([[1.0] * len(new)], np.float32).reshape(1, -1),
            "ALTERNATIVES": texts([]),
            "ALTERNATIVE_SCORES": np.zeros((1, 0), np.float32),
            "ALTERNATIVE_WORDS": texts([]),
            "TOKENS": np.array([list(range(stream.told, len(complete)))], np.int32).reshape(1, -1),
            "TIMESTAMPS": np.array([list(range(stream.told, len(complete)))], np.int32).reshape(1, -1),
        }
        stream.told = len(complete)
        if is_final:
            stream.segment += 1
            stream.first, stream.told = end, 0
        return entry


def heard(stream: _Stream, end: int) -> list[tuple[str, int]]:
    """Text and start of the words of the segment so far."""
    blocks = range(stream.first, end - BLOCK + 1, BLOCK)
    found = ((round(float(stream.audio[start]) * _SCALE), start) for start in blocks)
    return [(f"w{number}", start * 1000 // 16_000) for number, start in found if number]


class FleetServer(GrpcServer):
    """One replica."""

    def __init__(self, fingerprint: str = "same", max_streams: int = 8, **parameters: str):
        recognizer = FakeRecognizer(max_streams)
        recognizer.server_parameters |= {
            "first_chunk_samples": str(CHUNK), "chunk_samples": str(CHUNK), "max_streams": str(max_streams),
            **({"penstock_fingerprint": fingerprint} if fingerprint else {}), **parameters,
        }  # fmt: skip
        super().__init__(recognizer)
        self.batch = ContentBatch(recognizer, self.speakers)
        self.url = f"127.0.0.1:{self.port}"
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.on_request = lambda: self.may_answer.wait(60)

    def die_at_row(self, count: int) -> None:
        """The row with which its call breaks; nothing after it is answered."""
        left = [count]

        def before(samples: int, flags: int) -> None:
            left[0] -= 1
            if left[0] <= 0:
                raise ConnectionError("this server is dead")

        self.batch.before_row = before

    def close(self) -> None:
        self.may_answer.set()
        super().close()


def lie(server, wrong, is_due):
    """Wrong values for replies with one result, by their number from 1."""
    answer, replies = server.batch.answer, itertools.count(1)

    def answer_wrong(client, tensors):
        found = answer(client, tensors)
        return found | wrong if found["SEGMENT"].size == 1 and is_due(next(replies)) else found

    server.batch.answer = answer_wrong


@contextlib.contextmanager
def fleet_maker() -> Iterator[Callable[..., FleetServer]]:
    """Makes servers of one model, with the arguments of `FleetServer`; closes them at the end."""
    with contextlib.ExitStack() as stack:

        def make(*arguments, **named) -> FleetServer:
            server = FleetServer(*arguments, **named)
            stack.callback(server.close)
            return server

        yield make
