"""API keys: a file with a line `name sha256 max_streams` for each. The keys themselves are stored nowhere."""

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock_gateway.errors import ErrorCode, GatewayError

_LINE = re.compile(r"(?P<name>[\w.\-]{1,64})\s+(?P<digest>[0-9a-f]{64})\s+(?P<max_streams>[1-9]\d{0,5})")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The name that a stream is counted under, and its limit."""

    name: str
    max_streams: int | None
    """Concurrent streams; None: no limit of its own."""


ANONYMOUS = ApiKey("anonymous", None)
"""The key of all clients of a gateway without a file of keys."""


class KeyRing:
    """The keys that a gateway accepts."""

    def __init__(self, keys: Sequence[tuple[ApiKey, bytes]] | None = None):
        """`keys`: each with the SHA-256 of its text; None accepts every client as `ANONYMOUS`."""
        self._keys = keys

    @property
    def is_open(self) -> bool:
        """True if no key is needed."""
        return self._keys is None

    @property
    def names(self) -> Sequence[str]:
        """The names of all keys."""
        return [ANONYMOUS.name] if self._keys is None else [key.name for key, _ in self._keys]

    @classmethod
    def read(cls, path: Path) -> "KeyRing":
        """Reads a file of keys; # begins a comment. ValueError names a wrong line."""
        keys: list[tuple[ApiKey, bytes]] = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            text = line.partition("#")[0].strip()
            if not text:
                continue
            match = _LINE.fullmatch(text)
            if match is None:
                raise ValueError(f"{path}, line {number}: expected NAME SHA256 MAX_STREAMS")
            name = match["name"]
            if any(key.name == name for key, _ in keys):
                raise ValueError(f"{path}, line {number}: the name {name} appears twice")
            keys.append((ApiKey(name, int(match["max_streams"])), bytes.fromhex(match["digest"])))
        if not keys:
            raise ValueError(f"{path}: no key; expected lines NAME SHA256 MAX_STREAMS")
        return cls(keys)

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
            raise GatewayError(ErrorCode.INVALID_API_KEY, f"{missing}; accepted: Authorization: Bearer KEY")
        return found

    def named(self, name: str) -> ApiKey | None:
        """The key of this name, for a client secret that was made with it."""
        if self._keys is None:
            return ANONYMOUS if name == ANONYMOUS.name else None
        return next((key for key, _ in self._keys if key.name == name), None)
