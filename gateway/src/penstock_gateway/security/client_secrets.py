"""Ephemeral client secrets for browsers: `ek_...`, signed with HMAC-SHA256, so that no process stores them."""

import base64
import hashlib
import hmac
import json
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security.keys import ApiKey, KeyRing

PREFIX = "ek_"
MIN_LIFETIME_S, MAX_LIFETIME_S = 60, 7200
DEFAULT_LIFETIME_S = 600
MAX_SECRET_CHARS = 4096
"""A WebSocket handshake has lines of at most 8 KiB."""
_TAG_BYTES = 16


class Credential(NamedTuple):
    """What a client has shown."""

    key: ApiKey
    session: Mapping[str, Any]
    """The settings that its secret was made with; empty for a key, or without settings."""


class ClientSecrets:
    """Makes and checks secrets that stand for a key, and the settings of a session, until they expire."""

    def __init__(self, signing_key: bytes, keys: KeyRing, now_s: Callable[[], float] = time.time):
        """`signing_key`: 32 bytes or more, the same in all gateways of an address."""
        self._signing_key = signing_key
        self._keys = keys
        self._now_s = now_s

    def create(
        self, key: ApiKey, lifetime_s: int = DEFAULT_LIFETIME_S, session: Mapping[str, Any] | None = None
    ) -> tuple[str, int]:
        """(secret, Unix time in seconds at which it expires). GatewayError for a wrong lifetime or a large session."""
        if not MIN_LIFETIME_S <= lifetime_s <= MAX_LIFETIME_S:
            accepted = f"accepted: {MIN_LIFETIME_S} to {MAX_LIFETIME_S} seconds"
            raise GatewayError(
                ErrorCode.FIELD_INVALID, f"expires_after.seconds is {lifetime_s}; {accepted}", "expires_after.seconds"
            )
        expires_s = int(self._now_s()) + lifetime_s
        payload = zlib.compress(json.dumps([expires_s, key.name, session or {}], separators=(",", ":")).encode())
        secret = PREFIX + base64.urlsafe_b64encode(self._tag(payload) + payload).rstrip(b"=").decode()
        if len(secret) > MAX_SECRET_CHARS:
            message = f"the session makes a secret of {len(secret)} characters; accepted: {MAX_SECRET_CHARS}"
            raise GatewayError(ErrorCode.TOO_LARGE, f"{message}; send the rest with session.update", "session")
        return secret, expires_s

    def read(self, secret: str) -> Credential:
        """What the secret stands for. GatewayError if it is wrong or has expired."""
        text = secret.removeprefix(PREFIX)
        try:
            signed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError:
            signed = b""
        tag, payload = signed[:_TAG_BYTES], signed[_TAG_BYTES:]
        if not payload or not hmac.compare_digest(tag, self._tag(payload)):
            raise GatewayError(ErrorCode.INVALID_API_KEY, "the client secret is wrong")
        expires_s, name, session = json.loads(zlib.decompress(payload))
        key = self._keys.named(name)
        if expires_s < self._now_s() or key is None:
            raise GatewayError(ErrorCode.INVALID_API_KEY, "the client secret has expired")
        return Credential(key, session)

    def _tag(self, payload: bytes) -> bytes:
        return hmac.digest(self._signing_key, payload, hashlib.sha256)[:_TAG_BYTES]
