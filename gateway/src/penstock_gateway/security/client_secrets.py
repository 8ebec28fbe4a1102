"""Ephemeral client secrets for browsers: `ek_...`, signed with HMAC-SHA256, so that no process stores them."""

import base64
import hashlib
import hmac
import time
from collections.abc import Callable

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security.keys import ApiKey, KeyRing

PREFIX = "ek_"
MIN_LIFETIME_S, MAX_LIFETIME_S = 60, 7200
DEFAULT_LIFETIME_S = 600
_TAG_BYTES = 16


class ClientSecrets:
    """Makes and checks secrets that stand for a key until they expire."""

    def __init__(self, signing_key: bytes, keys: KeyRing, now_s: Callable[[], float] = time.time):
        """`signing_key`: 32 bytes or more, the same in all processes of a gateway."""
        self._signing_key = signing_key
        self._keys = keys
        self._now_s = now_s

    def create(self, key: ApiKey, lifetime_s: int = DEFAULT_LIFETIME_S) -> tuple[str, int]:
        """(secret, Unix time in seconds at which it expires). GatewayError for a wrong lifetime."""
        if not MIN_LIFETIME_S <= lifetime_s <= MAX_LIFETIME_S:
            accepted = f"accepted: {MIN_LIFETIME_S} to {MAX_LIFETIME_S} seconds"
            raise GatewayError(
                ErrorCode.FIELD_INVALID, f"expires_after.seconds is {lifetime_s}; {accepted}", "expires_after.seconds"
            )
        expires_s = int(self._now_s()) + lifetime_s
        payload = f"{expires_s}.{key.name}".encode()
        text = base64.urlsafe_b64encode(self._tag(payload) + payload).rstrip(b"=")
        return PREFIX + text.decode(), expires_s

    def authenticate(self, secret: str) -> ApiKey:
        """The key that the secret stands for. GatewayError if it is wrong or has expired."""
        text = secret.removeprefix(PREFIX)
        try:
            signed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError:
            signed = b""
        tag, payload = signed[:_TAG_BYTES], signed[_TAG_BYTES:]
        if not payload or not hmac.compare_digest(tag, self._tag(payload)):
            raise GatewayError(ErrorCode.INVALID_API_KEY, "the client secret is wrong")
        expires, _, name = payload.decode().partition(".")
        key = self._keys.named(name)
        if int(expires) < self._now_s() or key is None:
            raise GatewayError(ErrorCode.INVALID_API_KEY, "the client secret has expired")
        return key

    def _tag(self, payload: bytes) -> bytes:
        return hmac.digest(self._signing_key, payload, hashlib.sha256)[:_TAG_BYTES]
