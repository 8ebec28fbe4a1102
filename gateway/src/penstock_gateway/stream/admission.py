"""Counts the streams, requests, audio and held memory of each API key, over all processes of a gateway."""

import contextlib
import hashlib
import time
from collections.abc import Callable, MutableSequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing.context import BaseContext
from typing import Any

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security.keys import ANONYMOUS, MAX_NAMES, ApiKey
from penstock_gateway.security.limits import RETRY_AFTER_S

_MINUTE_S, _DAY_S = 60, 86_400
_STREAMS, _MINUTE, _REQUESTS, _DAY, _AUDIO_S, _HELD = range(6)
"""A row's numbers: live streams; requests of the minute with this number; audio of the day with this number; of each
replica group, samples that open files hold."""


@dataclass(frozen=True)
class Counts:
    """A row for each key in each process. Each process writes its own rows only."""

    rows: MutableSequence[float]
    tags: MutableSequence[int] = field(default_factory=lambda: [0] * MAX_NAMES)
    """The keys whose rows these are: part of the SHA-256 of their names; 0 is free. Keys may be added at any time."""
    lock: AbstractContextManager[Any] = field(default_factory=contextlib.nullcontext)
    """Of the tags."""
    groups: int = 1
    """Of replicas."""

    @property
    def row(self) -> int:
        """Numbers of a row."""
        return _HELD + self.groups

    @classmethod
    def of(cls, groups: int) -> "Counts":
        """Those of one process."""
        return cls([0.0] * (MAX_NAMES * (_HELD + groups)), groups=groups)

    @classmethod
    def shared(cls, context: BaseContext, processes: int, groups: int = 1) -> "Counts":
        """Those of several processes."""
        rows = context.Array("d", processes * MAX_NAMES * (_HELD + groups), lock=False)
        return cls(rows, context.Array("q", MAX_NAMES, lock=False), context.Lock(), groups)


class Admission:
    """Admits streams within the limits of their keys."""

    def __init__(self, counts: Counts | None = None, process: int = 0, now_s: Callable[[], float] = time.time):
        """`counts`: shared by the processes; `process`: this one's index; `now_s`: Unix time."""
        self._counts = Counts.of(groups=1) if counts is None else counts
        self._rows = self._counts.rows
        self._step, self._now_s = MAX_NAMES * self._counts.row, now_s
        self._first = process * self._step
        self._indices: dict[str, int] = {}
        for i in range(self._first, self._first + self._step, self._counts.row):  # those of a process that has died
            for number in (_STREAMS, *range(_HELD, self._counts.row)):
                self._rows[i + number] = 0

    def check(self, key: ApiKey) -> None:
        """GatewayError if the key has no stream left, or has reached a quota."""
        if key.max_streams is not None and self.live(key) >= key.max_streams:
            message = f"all {key.max_streams} streams of the API key {key.name!r} are open"
            raise GatewayError(ErrorCode.STREAMS_EXHAUSTED, message, retry_after_s=RETRY_AFTER_S)
        self._check_quota(key, key.requests_per_minute, _MINUTE, _MINUTE_S, "requests per minute")
        audio_s = None if key.audio_minutes_per_day is None else key.audio_minutes_per_day * 60
        self._check_quota(key, audio_s, _DAY, _DAY_S, "minutes of audio per day")

    def admit(self, key: ApiKey) -> Callable[[], None]:
        """Counts a stream and returns a function that ends it, once. GatewayError above a limit of its key.

        Processes that admit at the same instant may exceed a limit.
        """
        self.check(key)
        row = self._first + self._index(key)
        self._rows[row + _STREAMS] += 1
        self._add(row + _MINUTE, _MINUTE_S, 1)
        is_live = True

        def end() -> None:
            nonlocal is_live
            if is_live:
                is_live = False
                self._rows[row + _STREAMS] -= 1

        return end

    def add_audio(self, key: ApiKey, seconds: float) -> None:
        """Audio of a stream of the key was sent."""
        self._add(self._first + self._index(key) + _DAY, _DAY_S, seconds)

    def hold(self, key: ApiKey, group: int, samples: int) -> None:
        """Open files of the key hold as many more samples in this group of replicas, by its index."""
        self._rows[self._first + self._index(key) + _HELD + group] += samples

    def held(self, key: ApiKey, group: int) -> int:
        """Samples that open files of the key hold in this group."""
        return int(sum(self._rows[i + _HELD + group] for i in self._of_all(key)))

    def live(self, key: ApiKey) -> int:
        """Live streams of a key."""
        return int(sum(self._rows[i + _STREAMS] for i in self._of_all(key)))

    def _check_quota(self, key: ApiKey, quota: int | None, first: int, period_s: int, what: str) -> None:
        if quota is None:
            return
        number, elapsed_s = divmod(self._now_s(), period_s)
        used = sum(self._rows[i + first + 1] for i in self._of_all(key) if self._rows[i + first] == number)
        if used >= quota:
            limit = quota // 60 if first == _DAY else quota
            message = f"the API key {key.name!r} has reached its quota: {limit} {what}"
            raise GatewayError(ErrorCode.QUOTA_REACHED, message, retry_after_s=period_s - elapsed_s)

    def _add(self, place: int, period_s: int, amount: float) -> None:
        """Adds to the number after the place of its period's number; a new period begins with 0."""
        number = self._now_s() // period_s
        self._rows[place + 1] = amount + (self._rows[place + 1] if self._rows[place] == number else 0)
        self._rows[place] = number

    def _of_all(self, key: ApiKey) -> range:
        """The key's rows of all processes."""
        return range(self._index(key), len(self._rows), self._step)

    def _index(self, key: ApiKey) -> int:
        if (index := self._indices.get(key.name)) is None:
            tag = int.from_bytes(hashlib.sha256(key.name.encode()).digest()[:7], "big") | 1
            with self._counts.lock:
                found = next((i for i, known in enumerate(self._counts.tags) if known in (0, tag)), None)
                if found is None:  # more names than that, over all versions of the file
                    raise GatewayError(ErrorCode.OVERLOADED, "the gateway counts no more API keys: start it again")
                self._counts.tags[found] = tag
            index = self._indices[key.name] = found * self._counts.row
        return index


class AudioHold:
    """What one stream holds of the audio memory of an offline model's servers. A key may hold half of it."""

    def __init__(
        self, admission: Admission, key: ApiKey, group: int, sample_rate_hz: int, memory_s: Callable[[], float]
    ):
        """group: the index of the replica group; memory_s: audio that its servers hold together, 0 where unknown."""
        self._admission, self._key, self._group = admission, key, group
        self._sample_rate_hz, self._memory_s = sample_rate_hz, memory_s
        self.samples = 0

    def take(self, samples: int) -> None:
        """Before audio is sent. GatewayError: TOO_LARGE for a stream that is too long by itself, STREAMS_EXHAUSTED."""
        if not samples:
            return
        share_s = self._memory_s() / 2
        if share_s and self._key.name != ANONYMOUS.name:
            own_s = (self.samples + samples) / self._sample_rate_hz
            all_s = (self._admission.held(self._key, self._group) + samples) / self._sample_rate_hz
            limit = f"up to {share_s:g} s, half of what the servers hold (--max-audio-s)"
            if own_s > share_s:
                message = f"{own_s:g} s of audio; accepted of an API key: {limit}"
                raise GatewayError(ErrorCode.TOO_LARGE, message, server_code="AUDIO_TOO_LONG")
            if all_s > share_s:
                message = f"{all_s:g} s of audio of all open files of the API key {self._key.name!r}; accepted: {limit}"
                raise GatewayError(
                    ErrorCode.STREAMS_EXHAUSTED, message, retry_after_s=RETRY_AFTER_S, server_code="AUDIO_MEMORY_FULL"
                )
        self.samples += samples
        self._admission.hold(self._key, self._group, samples)

    def give_back(self) -> None:
        """The stream is over."""
        if self.samples:
            self._admission.hold(self._key, self._group, -self.samples)
        self.samples = 0
