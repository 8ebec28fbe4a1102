"""Counts the streams, requests, audio and held memory of each API key."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock_gateway import limits
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.security.keys import ANONYMOUS, ApiKey
from penstock_gateway.stream.replicas import Group


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
    requests: _Quota = field(default_factory=lambda: _Quota(limits.MINUTE_S))
    audio_s: _Quota = field(default_factory=lambda: _Quota(limits.DAY_S))
    held: "Counter[Group]" = field(default_factory=Counter)
    """Samples that open files hold, by replica group."""


class Admission:
    """Admits streams within the limits of their keys."""

    def __init__(self, now_s: Callable[[], float] = time.time):
        """`now_s`: Unix time."""
        self._now_s = now_s
        self._keys: defaultdict[str, _Usage] = defaultdict(_Usage)

    def check(self, key: ApiKey, streams: int = 1) -> None:
        """GatewayError if the key has no stream left, or has reached a quota."""
        usage = self._keys[key.name]
        if key.max_streams is not None and usage.streams + streams > key.max_streams:
            count = "all" if usage.streams >= key.max_streams else f"{usage.streams} of"
            needed = f", and {streams} are needed" if streams > 1 else ""
            message = f"{count} {key.max_streams} streams of the API key {key.name!r} are open{needed}"
            raise GatewayError(GatewayCode.STREAMS_EXHAUSTED, message)
        self._check_quota(key, usage.requests, key.requests_per_minute, 1, "requests per minute", streams - 1)
        self._check_quota(key, usage.audio_s, key.audio_minutes_per_day, 60, "minutes of audio per day")

    def admit(self, key: ApiKey, group: Group, held_s: float | None = 0.0) -> "Admitted":
        """Counts a stream. GatewayError above a limit of its key. Other arguments are those of `Admitted`."""
        self.check(key)
        usage = self._keys[key.name]
        usage.requests.add(1, self._now_s())  # before the memory is checked: a rejected file is a request, too
        return Admitted(key, usage, self._now_s, group, held_s)

    def _check_quota(self, key: ApiKey, quota: _Quota, limit: int | None, unit: int, what: str, more: int = 0) -> None:
        """`limit` has units of as many as `quota` counts."""
        now_s = self._now_s()
        if limit is not None and quota.of(now_s) + more >= limit * unit:
            message = f"the API key {key.name!r} has reached its quota: {limit} {what}"
            left_s = quota.period_s - now_s % quota.period_s
            raise GatewayError(GatewayCode.QUOTA_REACHED, message, retry_after_s=left_s)


class Admitted:
    """One stream's part in the limits of its key: the stream itself, its audio, and the memory that this holds.

    Audio is held on the servers of an offline model, of which a key may have half.
    """

    def __init__(self, key: ApiKey, usage: _Usage, now_s: Callable[[], float], group: Group, held_s: float | None):
        """held_s: audio that the stream holds from its start; None: all that is pushed. GatewayError as of `hold`."""
        self._key, self._usage, self._now_s, self._group = key, usage, now_s, group
        self.is_file = held_s is None
        """The stream holds all its audio."""
        self.samples = 0
        """Samples that it holds."""
        self.hold(round((held_s or 0.0) * group.sample_rate_hz))  # first: one that is rejected does not count
        self._is_counted = False
        self.count()

    @property
    def has_room(self) -> bool:
        """True where the key has a stream left."""
        return self._key.max_streams is None or self._usage.streams < self._key.max_streams

    def count(self) -> None:
        """The stream has a slot again, whatever the limit."""
        self._usage.streams += not self._is_counted
        self._is_counted = True

    def uncount(self) -> None:
        """The stream is parked: its key has room for another one."""
        self._usage.streams -= self._is_counted
        self._is_counted = False

    def end(self) -> None:
        """The stream is over."""
        self.uncount()
        self._usage.held[self._group] -= self.samples
        self.samples = 0

    def add_audio(self, seconds: float) -> None:
        """Audio was sent."""
        self._usage.audio_s.add(seconds, self._now_s())

    def hold(self, samples: int) -> None:
        """Before audio is sent. GatewayError: TOO_LARGE for a stream that is too long by itself, STREAMS_EXHAUSTED."""
        share_s, all_samples = self._group.memory_s / 2, self._usage.held[self._group] + samples
        if samples and share_s and self._key.name != ANONYMOUS.name:
            own_s, all_s = (each / self._group.sample_rate_hz for each in (self.samples + samples, all_samples))
            limit = f"up to {share_s:g} s, half of what the servers hold (--max-audio-s)"
            if own_s > share_s:
                message = f"{own_s:g} s of audio; accepted of an API key: {limit}"
                raise GatewayError(GatewayCode.TOO_LARGE, message)
            if all_s > share_s:
                message = f"{all_s:g} s of audio of all open files of the API key {self._key.name!r}; accepted: {limit}"
                raise GatewayError(GatewayCode.STREAMS_EXHAUSTED, message)
        self.samples += samples
        self._usage.held[self._group] = all_samples
