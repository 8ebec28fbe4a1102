"""The certificate of both ports, which is read again when its files change."""

import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_gateway.config import Config
from penstock_gateway.security.keys import file_version

if TYPE_CHECKING:
    import grpc

log = logging.getLogger(__name__)


class Certificate:
    """A certificate chain and its private key, in files. Each user of it asks for changes on its own."""

    def __init__(self, certificate: str, key: str):
        """OSError where a file cannot be read, ValueError where the two are no certificate and its key."""
        self._paths = (Path(certificate), Path(key))
        for path in self._paths:
            path.read_bytes()  # the error names the file
        self._check()
        self._version = self._seen()

    @classmethod
    def of(cls, config: Config) -> "Certificate | None":
        """That of the options; None where they have none."""
        if config.tls_cert is None or config.tls_key is None:
            return None
        return cls(config.tls_cert, config.tls_key)

    def changed(self) -> bool:
        """True once where the files are others than before, and right."""
        if (version := self._seen()) == self._version:
            return False
        self._version = version
        try:
            self._check()
        except (OSError, ValueError) as error:
            log.error("the certificate stays as it is: %s", error)
            return False
        log.info("read the certificate %s again", self._paths[0])
        return True

    def load_into(self, context: ssl.SSLContext) -> None:
        """Gives it to all later connections of the context."""
        context.load_cert_chain(*self._paths, password="")

    def credentials(self) -> "grpc.ServerCredentials":
        """For a gRPC port. They follow the files."""
        import grpc  # not above: the command chooses gRPC's settings after it has checked the files

        def fetch() -> Any:
            return self._grpc_configuration() if self.changed() else None

        return grpc.dynamic_ssl_server_credentials(self._grpc_configuration(), fetch)

    def _grpc_configuration(self) -> Any:
        import grpc

        certificate, key = (path.read_bytes() for path in self._paths)
        return grpc.ssl_server_certificate_configuration([(key, certificate)])

    def _check(self) -> None:
        try:
            self.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except OSError as error:
            files = "--tls-cert {}, --tls-key {}".format(*self._paths)
            raise ValueError(f"{files}: no PEM certificate with its private key ({error})") from error

    def _seen(self) -> object:
        return tuple(map(file_version, self._paths))


Follow = Callable[[], None]


def follow_certificate(config: Config, context: ssl.SSLContext | None) -> Follow:
    """A function that gives a changed certificate to later connections of the HTTP port."""
    certificate = Certificate.of(config)

    def follow() -> None:
        if certificate is not None and context is not None and certificate.changed():
            certificate.load_into(context)

    return follow
