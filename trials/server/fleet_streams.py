"""Streams of mixed kinds over a fleet: what each must tell, and what it told beside faults."""

import asyncio
import io
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx2
import numpy as np
import soundfile

from loadtest.gateway_clients import CONNECTION_ERRORS, Text, Texts, Word, realtime_texts, riva_texts
from penstock_gateway.riva.proto import riva_asr_pb2 as riva_pb2
from trials.server.recordings import Recording
from trials.server.resources import Figures

RATE_HZ = 16_000
_STREAM_S, _SILENCE_S = 40, 180
_PAUSE_SAMPLES = RATE_HZ
"""Between utterances: the gateway ends a segment in it."""
_PART_SAMPLES = RATE_HZ // 10
_PHRASES = riva_pb2.SpeechContext(phrases=["RUBOUT", "ENTER SIX"], boost=50)
_SAME_PLACE_MS, _MAX_CHANGED = 400, 2
_RETRY_S, _WAIT_S, _STAGGER_S = 0.2, 300.0, 0.13
_MAX_REJECTIONS = 200
"""Limit of a stream's rejections: most of a minute."""
_NEVER = ("the server of the stream failed", "replicas are full", "no replica answers", "FIELD_INVALID")
"""In errors that the death of a gateway does not excuse."""
_NO_ROOM = ("replicas are full", "HTTP 429", "RST_STREAM with error code 8")
"""In errors of a stream that was rejected; HAProxy 2.6 hides the status of a call that ends before its audio."""
_BEFORE_S = 12.0
Parts = AsyncIterator[np.ndarray]


class Fleet(Protocol):
    """Servers behind gateways: processes (`fleet.Fleet`) or containers."""

    key: str | None
    http: str
    grpc: str
    """HOST:PORT of the gateways."""
    gateway_fault_s: float
    """Until then (monotonic clock) streams may have been lost with their gateway."""

    def moves(self) -> tuple[float, float]:
        """Streams moved, and seconds sent again."""


async def spoken(samples: np.ndarray, begin_s: float | None = None) -> Parts:
    """Parts of 100 ms, each at the moment when its last sample is spoken; what was spoken before now comes at once.

    begin_s: of the monotonic clock (now).
    """
    begin_s = time.monotonic() if begin_s is None else begin_s
    for start in range(0, len(samples), _PART_SAMPLES):
        part = samples[start : start + _PART_SAMPLES]
        await asyncio.sleep(begin_s + (start + len(part)) / RATE_HZ - time.monotonic())
        yield part


def _headers(fleet: Fleet) -> dict[str, str]:
    return {"Authorization": f"Bearer {fleet.key}"} if fleet.key else {}


def _connection(fleet: Fleet) -> dict[str, Any]:
    """Pings wait behind audio that is ahead of a slow server, so that none may end a stream."""
    return {"additional_headers": _headers(fleet), "ping_timeout": None}


def _riva(fleet: Fleet, parts: Parts, **fields: object) -> Texts:
    return riva_texts(fleet.grpc, parts, key=fleet.key, **fields)


async def _upload(fleet: Fleet, parts: Parts) -> Texts:
    """A recording, once all of it is there."""
    file = io.BytesIO()
    soundfile.write(file, np.concatenate([part async for part in parts]), RATE_HZ, format="WAV", subtype="PCM_16")
    form = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    async with httpx2.AsyncClient(timeout=_WAIT_S, headers=_headers(fleet)) as client:
        url = f"http://{fleet.http}/v1/audio/transcriptions"
        reply = await client.post(url, files={"file": ("a.wav", file.getvalue())}, data=form)
    if reply.status_code != 200:
        raise ConnectionError(f"{reply.status_code}: {reply.text}")
    body = json.loads(reply.text)
    words = [(word["word"], round(1000 * word["start"]), round(1000 * word["end"])) for word in body["words"]]
    yield Text(body["text"], True, None, tuple(words))


KINDS: dict[str, Callable[[Fleet, Parts], Texts]] = {
    "segments": _riva,
    "one segment": lambda fleet, parts: realtime_texts(fleet.http, parts, **_connection(fleet)),
    "beam": lambda fleet, parts: _riva(fleet, parts, max_alternatives=3),
    "phrases": lambda fleet, parts: _riva(fleet, parts, speech_contexts=[_PHRASES]),
    "file": _upload,
    "silence": _riva,
}
"""Segments as the gateway ends them, `turn_detection: null`, and 3 minutes of silence between words."""
SPEAKER_KINDS: dict[str, Callable[[Fleet, Parts], Texts]] = {
    "segments with speakers": lambda fleet, parts: _riva(fleet, parts, has_speakers=True),
    "one segment with speakers": lambda fleet, parts: realtime_texts(
        fleet.http, parts, has_speakers=True, **_connection(fleet)
    ),
}
"""For servers with a speaker model."""


@dataclass
class Played:
    """Results of one stream."""

    words: list[Word] = field(default_factory=list)
    speakers: list[int | None] = field(default_factory=list)
    """The speakers of these words, if its kind has speakers."""
    lates: list[tuple[float, float]] = field(default_factory=list)
    """Time when each text came, and the seconds since the end of its audio was spoken. Without those
    of a stream that began anew."""
    reconnections: int = 0
    rejections: int = 0
    """Attempts to start for which there was no room, as while a server is down."""
    changed: int = 0
    """Words that were recognized differently."""


@dataclass(frozen=True)
class Stream:
    """One client's stream: its kind and its audio, int16 [n]."""

    kind: str
    samples: np.ndarray

    @property
    def seconds(self) -> float:
        """Duration of its audio."""
        return len(self.samples) / RATE_HZ

    async def expected(self, fleet: Fleet) -> list[Word]:
        """Words without a fault, as fast as they come."""
        return (await self._read(Played(), self._open(fleet, _unpaced(self.samples)), 0.0)).words

    async def play(self, fleet: Fleet, expected: Sequence[Word]) -> Played:
        """At the pace of speech. A stream begins anew if its gateway ended, or if there was no room for it.
        AssertionError for other words or errors.
        """
        begin_s, played = time.monotonic(), Played()
        while True:
            attempt_s, played.words, played.speakers = time.monotonic(), [], []
            texts = self._open(fleet, spoken(self.samples, begin_s=begin_s))
            try:
                await asyncio.wait_for(self._read(played, texts, begin_s), self.seconds + _WAIT_S)
            except (httpx2.HTTPError, *CONNECTION_ERRORS) as error:
                self._check(played.words, expected[: len(played.words)])
                if not played.words and any(text in str(error) for text in _NO_ROOM):
                    played.rejections += 1
                    assert played.rejections < _MAX_REJECTIONS, f"{self.kind}: no room: {error}"
                    await asyncio.sleep(_RETRY_S)
                    continue
                is_excused = attempt_s <= fleet.gateway_fault_s and not any(text in str(error) for text in _NEVER)
                assert is_excused, f"{self.kind}: {type(error).__name__}: {error}"
                played.reconnections += 1
                await asyncio.sleep(_RETRY_S)
            else:
                played.changed = self._check(played.words, expected)
                missing = len(played.words) - len(played.speakers) if self.kind in SPEAKER_KINDS else 0
                assert not missing, f"{self.kind}: {missing} words are not told with their speakers"
                return played

    def _open(self, fleet: Fleet, parts: Parts) -> Texts:
        return (KINDS | SPEAKER_KINDS)[self.kind](fleet, parts)

    def _check(self, words: Sequence[Word], expected: Sequence[Word]) -> int:
        """Words that were recognized differently: the same number of words at the same places. Else AssertionError."""
        different = [i for i, (one, other) in enumerate(zip(words, expected, strict=False)) if one != other]
        is_aligned = len(words) == len(expected) and all(
            abs(words[i][1] - expected[i][1]) <= _SAME_PLACE_MS for i in different
        )
        if is_aligned and len(different) <= _MAX_CHANGED:
            return len(different)
        place = different[0] if different else min(len(words), len(expected))
        near = slice(max(0, place - 2), place + 4)
        raise AssertionError(f"{self.kind}: word {place}: {words[near]}, expected {expected[near]}")

    async def _read(self, played: Played, opened: Texts, begin_s: float) -> Played:
        async with aclosing(opened) as texts:
            async for text in texts:
                if text.processed_s is not None and not played.reconnections + played.rejections:
                    now_s = time.monotonic()
                    played.lates.append((now_s, now_s - begin_s - text.processed_s))
                if text.is_final:
                    played.words += text.words
                    played.speakers += text.speakers
        return played


async def _unpaced(samples: np.ndarray) -> Parts:
    for start in range(0, len(samples), _PART_SAMPLES):
        yield samples[start : start + _PART_SAMPLES]


def make_streams(
    recordings: Sequence[Recording], count: int, silence_s: float = _SILENCE_S, kinds: Sequence[str] = tuple(KINDS)
) -> list[Stream]:
    """Streams of these kinds in turn, each with other audio: utterances with pauses of 1 s."""
    pause = np.zeros(_PAUSE_SAMPLES, np.float32)
    parts = np.concatenate([part for recording in recordings for part in (recording.samples, pause)])
    speech = np.round(np.resize(parts, _STREAM_S * RATE_HZ) * 32767).astype(np.int16)
    silence = np.zeros(round(silence_s * RATE_HZ), np.int16)
    streams = []
    for number, kind in zip(range(count), itertools.cycle(kinds), strict=False):
        samples = np.roll(speech, 7 * _PART_SAMPLES * number)
        if kind == "silence":
            cut = len(samples) // 4
            samples = np.concatenate([samples[:cut], silence, samples[cut : 2 * cut]])
        streams.append(Stream(kind, samples))
    return streams


async def undisturbed(fleet: Fleet, streams: Sequence[Stream]) -> list[list[Word]]:
    """The words of each stream without a fault."""
    found = list(await asyncio.gather(*(stream.expected(fleet) for stream in streams)))
    assert all(found), "a stream has no words"
    return found


@dataclass
class Run:
    """Results of streams while something happened to their fleet."""

    played: list[tuple[Stream, Played]] = field(default_factory=list)
    """Streams whose words were right."""
    problems: list[str] = field(default_factory=list)

    @property
    def speakers_stopped(self) -> int:
        """Streams that asked for speakers, and whose last word has none."""
        return sum(played.speakers[-1:] == [None] for _, played in self.played)

    @property
    def audio_s(self) -> float:
        """Duration of the streams that told the right words."""
        return sum(stream.seconds for stream, _ in self.played)

    def counts(self) -> Figures:
        """Streams that told the right words, and what they told.

        "words_changed": those that were recognized differently: at a move the encoder's context may be shorter.
        "rejections": attempts to start for which there was no room.
        """
        played = [each for _, each in self.played]
        return {
            "streams": len(played),
            "words": sum(len(each.words) for each in played),
            "words_changed": sum(each.changed for each in played),
            "reconnections": sum(each.reconnections for each in played),
            "rejections": sum(each.rejections for each in played),
        }

    def late_s(self, begin_s: float = 0.0, end_s: float = float("inf")) -> float:
        """Delay of the latest text within these times."""
        lates = (late_s for _, played in self.played for at_s, late_s in played.lates if begin_s <= at_s <= end_s)
        return max(lates, default=0.0)


async def run_during(
    fleet: Fleet, streams: Sequence[Stream], expected: Sequence[Sequence[Word]], work: Callable[[], None]
) -> Run:
    """Plays each stream again and again until `work`, in a thread of its own, has returned; all end then."""
    run, begun_s, working = Run(), time.monotonic(), asyncio.create_task(asyncio.to_thread(work))

    async def play(number: int) -> None:
        await asyncio.sleep(_STAGGER_S * number)
        stream, is_first = streams[number], True
        while is_first or not working.done():
            is_first, begin_s = False, time.monotonic()
            try:
                run.played.append((stream, await stream.play(fleet, expected[number])))
            except Exception as error:  # noqa: BLE001  the others go on
                after_s = time.monotonic() - begun_s
                run.problems.append(f"stream {number} after {after_s:.0f} s: {type(error).__name__}: {error}")
            await asyncio.sleep(begin_s + stream.seconds - time.monotonic())  # a file comes at once

    await asyncio.gather(working, *(play(number) for number in range(len(streams))))
    return run


def disturb(
    fleet: Fleet,
    streams: Sequence[Stream],
    expected: Sequence[Sequence[Word]],
    fault: Callable[[], object],
    moves: bool = True,
) -> Figures:
    """Lets the fault happen when the streams have run for 12 s. AssertionError for wrong words.

    moves: some streams must move; else none may.
    """
    before, at_s = fleet.moves(), [0.0, 0.0]

    def work() -> None:
        time.sleep(_BEFORE_S)
        at_s[0] = time.monotonic()
        fault()
        at_s[1] = time.monotonic()

    run = asyncio.run(run_during(fleet, streams, expected, work))
    moved, replayed_s = np.subtract(fleet.moves(), before).tolist()
    figures: Figures = {
        **run.counts(),
        "moved": int(moved),
        "replayed_s_per_stream": replayed_s / max(1, moved),
        "text_late_s_max": run.late_s(at_s[0]),
        "text_late_before_s_max": run.late_s(0.0, at_s[0]),
        "speakers_stopped": run.speakers_stopped,
        "fault_s": at_s[1] - at_s[0],
    }
    assert not run.problems, (figures, run.problems[:3])
    assert (moved > 0) == moves, figures
    assert not run.speakers_stopped, figures  # each replica has a speaker model, and a move keeps the speakers
    return figures
