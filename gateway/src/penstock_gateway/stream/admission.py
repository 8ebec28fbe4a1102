"""Counts the streams, requests, audio and held memory of each API key."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security.keys import ANONYMOUS, ApiKey
from penstock_gateway.security.limits import RETRY_AFTER_S

_MINUTE_S, _DAY_S = 60, 86_400


@dataclass
class _Quota:
    """Use in the period of `period_s` with this number."""

    period_s: int
    number: float = 0.0
    used: float = 0.0

    def of(self, now_s: float) -> float:
        """Use now: a new period begins with 0."""
        return self.used if self.number == now_s // self.period_s else 0.0

    def add(self, amount: float, now_s: float) -> None:
        self.used = self.of(now_s) + amount
        self.number = now_s // self.period_s


@dataclass
class _Usage:
    """Open streams and use of one key."""

    streams: int = 0
    requests: _Quota = field(default_factory=lambda: _Quota(_MINUTE_S))
    audio_s: _Quota = field(default_factory=lambda: _Quota(_DAY_S))
    held: Counter[int] = field(default_factory=Counter)
    """Samples that open files hold, by replica group."""


class Admission:
    """Admits streams within the limits of their keys."""

    def __init__(self, now_s: Callable[[], float] = time.time):
        """`now_s`: Unix time."""
        self._now_s = now_s
        self._keys: defaultdict[str, _Usage] = defaultdict(_Usage)

    def has_room(self, key: ApiKey) -> bool:
        """True where the key has a stream left."""
        return key.max_streams is None or self._keys[key.name].streams < key.max_streams

    def check(self, key: ApiKey) -> None:
        """GatewayError if the key has no stream left, or has reached a quota."""
        usage = self._keys[key.name]
        if not self.has_room(key):
            message = f"all {key.max_streams} streams of the API key {key.name!r} are open"
            raise GatewayError(ErrorCode.STREAMS_EXHAUSTED, message, retry_after_s=RETRY_AFTER_S)
        self._check_quota(key, usage.requests, key.requests_per_minute, 1, "requests per minute")
        self._check_quota(key, usage.audio_s, key.audio_minutes_per_day, 60, "minutes of audio per day")

    def admit(self, key: ApiKey) -> Callable[[], None]:
        """Counts a stream and returns a function that ends it, once. GatewayError above a limit of its key."""
        self.check(key)
        self._keys[key.name].requests.add(1, self._now_s())
        return self.count(key)

    def count(self, key: ApiKey) -> Callable[[], None]:
        """The same without limits, for a stream that has begun and was parked."""
        usage = self._keys[key.name]
        usage.streams += 1
        is_live = True

        def end() -> None:
            nonlocal is_live
            if is_live:
                is_live = False
                usage.streams -= 1

        return end

    def add_audio(self, key: ApiKey, seconds: float) -> None:
        """Audio of a stream of the key was sent."""
        self._keys[key.name].audio_s.add(seconds, self._now_s())

    def hold(self, key: ApiKey, group: int, samples: int) -> None:
        """Open files of the key hold as many more samples in this group of replicas, by its index."""
        self._keys[key.name].held[group] += samples

    def held(self, key: ApiKey, group: int) -> int:
        """Samples that open files of the key hold in this group."""
        return self._keys[key.name].held[group]

    def live(self, key: ApiKey) -> int:
        """Live streams of a key."""
        return self._keys[key.name].streams

    def _check_quota(self, key: ApiKey, quota: _Quota, limit: int | None, unit: int, what: str) -> None:
        """`limit` has units of as many as `quota` counts."""
        now_s = self._now_s()
        if limit is not None and quota.of(now_s) >= limit * unit:
            message = f"the API key {key.name!r} has reached its quota: {limit} {what}"
            raise GatewayError(ErrorCode.QUOTA_REACHED, message, retry_after_s=quota.period_s - now_s % quota.period_s)


class AudioHold:
    """One stream's hold on the audio memory of an offline model's servers. A key may hold half of it."""

    def __init__(
        self, admission: Admission, key: ApiKey, group: int, sample_rate_hz: int, memory_s: Callable[[], float]
    ):
        """group: the index of the replica group; memory_s: audio that its servers hold together, 0 where unknown."""
        self._admission, self._key, self._group = admission, key, group
        self._sample_rate_hz, self._memory_s = sample_rate_hz, memory_s
        self.samples = 0

    def add(self, samples: int) -> None:
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
                raise GatewayError(ErrorCode.TOO_LARGE, message)
            if all_s > share_s:
                message = f"{all_s:g} s of audio of all open files of the API key {self._key.name!r}; accepted: {limit}"
                raise GatewayError(ErrorCode.STREAMS_EXHAUSTED, message, retry_after_s=RETRY_AFTER_S)
        self.samples += samples
        self._admission.hold(self._key, self._group, samples)

    def give_back(self) -> None:
        """The stream is over."""
        if self.samples:
            self._admission.hold(self._key, self._group, -self.samples)
        self.samples = 0
