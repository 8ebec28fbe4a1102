"""Authentication of a request in any protocol: an API key or a client secret, and the origin of a page."""

from dataclasses import dataclass

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security.client_secrets import PREFIX, ClientSecrets, Credential
from penstock_gateway.security.keys import ApiKey, KeyRing
from penstock_gateway.security.origins import Origins

_SCHEME = "bearer "


@dataclass(frozen=True, slots=True)
class Access:
    """Keys, client secrets and origins of a gateway."""

    keys: KeyRing
    secrets: ClientSecrets
    origins: Origins

    def read(self, text: str | None) -> Credential:
        """What a key, a client secret, or None stands for. GatewayError for a wrong one."""
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
            raise GatewayError(ErrorCode.INVALID_API_KEY, message)
        return self.keys.authenticate(token)


def _token(authorization: str | None) -> str | None:
    """What stands behind `Bearer `; None without it."""
    text = authorization or ""
    return text[len(_SCHEME) :].strip() if text.lower().startswith(_SCHEME) else None
