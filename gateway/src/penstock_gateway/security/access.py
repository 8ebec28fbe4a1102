"""Authentication of a request in any protocol: an API key or a client secret, and the origin of a page."""

import base64
import hashlib
import hmac
import json
import re
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.security.keys import ApiKey, KeyRing

PREFIX = "ek_"
MIN_LIFETIME_S, MAX_LIFETIME_S = 60, 7200
DEFAULT_LIFETIME_S = 600
MAX_SECRET_CHARS = 4096
"""A WebSocket handshake has lines of at most 8 KiB."""
_TAG_BYTES = 16
_SCHEME = "bearer "
_LOOPBACK_HOST = re.compile(r"(([\w-]+\.)*localhost|127(\.\d{1,3}){3}|\[::1\])\.?(:\d*)?")


class Credential(NamedTuple):
    """A client's proof of its key."""

    key: ApiKey
    session: Mapping[str, Any]
    """The settings that its secret was made with; empty for a key, or without settings."""


class ClientSecrets:
    """Makes and checks secrets that stand for a key, and the settings of a session, until they expire.

    They are for browsers: `ek_...`, signed with HMAC-SHA256, so that no process stores them.
    """

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
            message = f"expires_after.seconds is {lifetime_s}; accepted: {MIN_LIFETIME_S} to {MAX_LIFETIME_S} seconds"
            raise GatewayError(GatewayCode.FIELD_INVALID, message, "expires_after.seconds")
        expires_s = int(self._now_s()) + lifetime_s
        payload = zlib.compress(json.dumps([expires_s, key.name, session or {}], separators=(",", ":")).encode())
        secret = PREFIX + base64.urlsafe_b64encode(self._tag(payload) + payload).rstrip(b"=").decode()
        if len(secret) > MAX_SECRET_CHARS:
            message = f"the session makes a secret of {len(secret)} characters; accepted: {MAX_SECRET_CHARS}"
            raise GatewayError(GatewayCode.TOO_LARGE, f"{message}; send the rest with session.update", "session")
        return secret, expires_s

    def read(self, secret: str) -> Credential:
        """Returns the credential of the secret. GatewayError if it is wrong or has expired."""
        text = secret.removeprefix(PREFIX)
        try:
            signed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError:
            signed = b""
        tag, payload = signed[:_TAG_BYTES], signed[_TAG_BYTES:]
        if not payload or not hmac.compare_digest(tag, self._tag(payload)):
            raise GatewayError(GatewayCode.INVALID_API_KEY, "the client secret is wrong")
        expires_s, name, session = json.loads(zlib.decompress(payload))
        key = self._keys.named(name)
        if expires_s < self._now_s() or key is None:
            raise GatewayError(GatewayCode.INVALID_API_KEY, "the client secret has expired")
        return Credential(key, session)

    def _tag(self, payload: bytes) -> bytes:
        return hmac.digest(self._signing_key, payload, hashlib.sha256)[:_TAG_BYTES]


class Origins:
    """Web pages that may use the gateway: a browser names the page's origin, other clients send none."""

    def __init__(self, allowed: Collection[str] = ()):
        """`allowed`: such as `https://example.com`, or `*` for all. The gateway's own pages always are."""
        self.allowed = frozenset(origin.rstrip("/").lower() for origin in allowed)
        """Origins as browsers write them."""

    def check(self, origin: str | None, host: str | None) -> None:
        """GatewayError for a page of another origin; None is a client that is not a browser.

        `host` is the request's Host header.
        """
        if origin is None:
            return
        text = origin.lower()
        is_own = host is not None and text.partition("://")[2] == host.lower()
        if not (is_own or "*" in self.allowed or text in self.allowed):
            raise GatewayError(GatewayCode.ORIGIN_REJECTED, f"pages of {origin[:80]} are not allowed (--origins)")


def check_host(host: str | None) -> None:
    """GatewayError for a Host header other than a loopback name, for a gateway without keys.

    The owner of a domain can let its name stand for 127.0.0.1; a page there is then of the gateway's own origin.
    """
    if host is None or _LOOPBACK_HOST.fullmatch(host.lower()):
        return
    message = f"the host {host[:80]!r} needs a gateway with --keys; accepted: localhost, 127.0.0.1, [::1]"
    raise GatewayError(GatewayCode.ORIGIN_REJECTED, message)


def only_authorization(values: Sequence[str]) -> str | None:
    """The Authorization header or metadata entry, of all of that name.

    GatewayError for several: a program on the way may read another one.
    """
    if len(values) > 1:
        raise GatewayError(GatewayCode.INVALID_API_KEY, "authorization is given twice; accepted: once")
    return values[0] if values else None


@dataclass(frozen=True, slots=True)
class Access:
    """Keys, client secrets and origins of a gateway."""

    keys: KeyRing
    secrets: ClientSecrets
    origins: Origins

    def check_page(self, origin: str | None, host: str | None) -> None:
        """GatewayError for a page that may not use the gateway; both are headers of the request."""
        if self.keys.is_open:
            check_host(host)
        self.origins.check(origin, host)

    def read(self, text: str | None) -> Credential:
        """Returns the credential of a key, a client secret, or None. GatewayError for a wrong one."""
        if text is not None and text.startswith(PREFIX):
            return self.secrets.read(text)
        return Credential(self.keys.authenticate(text), {})

    def read_header(self, authorization: str | None) -> Credential:
        """`read` of an Authorization header or metadata entry, `Bearer KEY`. GatewayError for a wrong one."""
        return self.read(_token(authorization))

    def authenticate_header(self, authorization: str | None) -> ApiKey:
        """The key of an Authorization header or metadata entry. GatewayError for a wrong one."""
        return self.read_header(authorization).key

    def authenticate_key_header(self, authorization: str | None) -> ApiKey:
        """The same for a key only: GatewayError for a client secret, which cannot make others."""
        token = _token(authorization)
        if token is not None and token.startswith(PREFIX):
            message = "a client secret makes no client secrets; accepted: an API key"
            raise GatewayError(GatewayCode.INVALID_API_KEY, message)
        return self.keys.authenticate(token)


def _token(authorization: str | None) -> str | None:
    """Text after `Bearer `; None without it."""
    text = authorization or ""
    return text[len(_SCHEME) :].strip() if text.lower().startswith(_SCHEME) else None
