"""Authentication of a request in any protocol: an API key or a client secret, and the origin of a page."""

from dataclasses import dataclass

from penstock_gateway.security.client_secrets import PREFIX, ClientSecrets
from penstock_gateway.security.keys import ApiKey, KeyRing
from penstock_gateway.security.origins import Origins

_SCHEME = "bearer "


@dataclass(frozen=True, slots=True)
class Access:
    """Keys, client secrets and origins of a gateway."""

    keys: KeyRing
    secrets: ClientSecrets
    origins: Origins

    def authenticate(self, credential: str | None) -> ApiKey:
        """The key of a credential: a key, a client secret, or None. GatewayError for a wrong one."""
        if credential is not None and credential.startswith(PREFIX):
            return self.secrets.authenticate(credential)
        return self.keys.authenticate(credential)

    def authenticate_header(self, authorization: str | None) -> ApiKey:
        """The key of an Authorization header or metadata entry, `Bearer KEY`. GatewayError for a wrong one."""
        text = authorization or ""
        return self.authenticate(text[len(_SCHEME) :].strip() if text.lower().startswith(_SCHEME) else None)
