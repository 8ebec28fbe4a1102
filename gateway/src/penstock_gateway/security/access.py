"""Authentication of a request in any protocol: an API key or a client secret, and the origin of a page."""

from dataclasses import dataclass

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
        text = authorization or ""
        return self.read(text[len(_SCHEME) :].strip() if text.lower().startswith(_SCHEME) else None)

    def authenticate_header(self, authorization: str | None) -> ApiKey:
        """The key of an Authorization header or metadata entry. GatewayError for a wrong one."""
        return self.read_header(authorization).key
