"""Which web pages may use the gateway: a browser names the page's origin, other clients send none."""

from collections.abc import Collection

from penstock_gateway.errors import ErrorCode, GatewayError


class Origins:
    """The allowed origins; the gateway's own pages are always allowed."""

    def __init__(self, allowed: Collection[str] = ()):
        """`allowed`: such as `https://example.com`, or `*` for all."""
        self.allowed = frozenset(origin.rstrip("/").lower() for origin in allowed)
        """As browsers write them."""

    def is_allowed(self, origin: str, host: str | None) -> bool:
        """Whether a page of `origin` may use the gateway; `host` is the request's Host header."""
        text = origin.lower()
        is_own = host is not None and text.partition("://")[2] == host.lower()
        return "*" in self.allowed or text in self.allowed or is_own

    def check(self, origin: str | None, host: str | None) -> None:
        """GatewayError for a page of another origin; None is a client that is not a browser."""
        if origin is not None and not self.is_allowed(origin, host):
            raise GatewayError(ErrorCode.ORIGIN_REJECTED, f"pages of {origin[:80]} are not allowed (--origins)")
