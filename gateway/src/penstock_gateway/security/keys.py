"""API keys: a file with a line `name sha256 max_streams` for each. The keys themselves are stored nowhere."""

import hashlib
import hmac
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.security.files import Followed, WatchedFile

MAX_NAMES = 4096
_KEYS_PER_NAME = 2
_FORM = "NAME SHA256 MAX_STREAMS [requests_per_minute=N] [audio_minutes_per_day=N] [expires=YYYY-MM-DD]"
_LINE = re.compile(r"(?P<name>[\w.\-]{1,64})\s+(?P<digest>[0-9a-f]{64})\s+(?P<max_streams>[1-9]\d{0,5})(?P<more>.*)")
_NUMBER = re.compile(r"[1-9]\d{0,8}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The name that a stream is counted under, and its limits; None is no limit of its own."""

    name: str
    max_streams: int | None
    """Concurrent streams."""
    requests_per_minute: int | None = None
    """Streams that start."""
    audio_minutes_per_day: int | None = None
    expires_s: float | None = None
    """Unix time."""


ANONYMOUS = ApiKey("anonymous", None)
"""The key of all clients of a gateway without a file of keys."""
Keys = Sequence[tuple[ApiKey, bytes]]


class KeyRing:
    """The keys that a gateway accepts."""

    def __init__(
        self, keys: Keys | None = None, file: Followed[Keys] | None = None, now_s: Callable[[], float] = time.time
    ):
        """`keys`: each with the SHA-256 of its text, instead of a file; without both every client is `ANONYMOUS`."""
        self._given, self._now_s = keys, now_s
        self.file = file

    @property
    def _keys(self) -> Keys | None:
        return self._given if self.file is None else self.file.value

    @property
    def is_open(self) -> bool:
        """True if no key is needed."""
        return self._keys is None

    @classmethod
    def read(cls, path: Path, now_s: Callable[[], float] = time.time) -> "KeyRing":
        """Reads a file of keys; # begins a comment. ValueError names a wrong line; OSError as `read_file`."""
        return cls(file=Followed("keys", [path], lambda files: _parse(*files)), now_s=now_s)

    def authenticate(self, text: str | None) -> ApiKey:
        """The key with this text. Takes the same time whichever key matches. GatewayError if none does."""
        if self._keys is None:
            return ANONYMOUS
        digest = hashlib.sha256((text or "").encode()).digest()
        found = None
        for key, expected in self._keys:
            if hmac.compare_digest(digest, expected):
                found = key
        if found is None:
            missing = "no API key is given" if not text else "the API key is wrong"
            raise GatewayError(GatewayCode.INVALID_API_KEY, f"{missing}; accepted: Authorization: Bearer KEY")
        if not self._is_valid(found):
            raise GatewayError(GatewayCode.INVALID_API_KEY, "the API key has expired")
        return found

    def named(self, name: str) -> ApiKey | None:
        """The key of this name, for a client secret that was made with it."""
        if self._keys is None:
            return ANONYMOUS if name == ANONYMOUS.name else None
        return next((key for key, _ in self._keys if key.name == name and self._is_valid(key)), None)

    def _is_valid(self, key: ApiKey) -> bool:
        return key.expires_s is None or self._now_s() < key.expires_s


def _parse(file: WatchedFile) -> Keys:
    path = file.path
    keys: list[tuple[ApiKey, bytes]] = []
    names: Counter[str] = Counter()
    for number, line in enumerate(file.text.splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            keys.append(_key(text))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        name = keys[-1][0].name
        names[name] += 1
        if names[name] > _KEYS_PER_NAME:
            raise ValueError(f"{path}, line {number}: the name {name} has more than {_KEYS_PER_NAME} keys")
    if not 0 < len(names) <= MAX_NAMES:
        raise ValueError(f"{path} has {len(names) or 'no key'}; expected 1 to {MAX_NAMES} names, lines {_FORM}")
    return keys


def _key(text: str) -> tuple[ApiKey, bytes]:
    match = _LINE.fullmatch(text)
    pairs = [pair.partition("=") for pair in match["more"].split()] if match else []
    more = {name: value for name, _, value in pairs}
    if match is None or len(more) < len(pairs) or (match["more"] and not match["more"][0].isspace()):
        raise ValueError(f"expected {_FORM}")
    expires = more.pop("expires", None)
    limits = {name: _number(name, value) for name, value in more.items()}
    key = ApiKey(match["name"], int(match["max_streams"]), expires_s=_end_of(expires) if expires else None, **limits)
    return key, bytes.fromhex(match["digest"])


def _number(name: str, value: str) -> int:
    if name not in ("requests_per_minute", "audio_minutes_per_day") or not _NUMBER.fullmatch(value):
        raise ValueError(f"{name}={value} is not accepted; expected {_FORM}")
    return int(value)


def _end_of(day: str) -> float:
    """The end of a day in UTC, as Unix time."""
    try:
        end = date.fromisoformat(day) + timedelta(days=1)
    except ValueError:
        raise ValueError(f"expires={day} is no date; expected {_FORM}") from None
    return datetime(end.year, end.month, end.day, tzinfo=timezone.utc).timestamp()
