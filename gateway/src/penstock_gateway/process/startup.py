"""Checks before a gateway starts: its options and the files that they name, which `penstock serve` checks, too.

The certificate is also read again while the gateway runs.
"""

import argparse
import logging
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_gateway.config import Config
from penstock_gateway.security.files import WatchedFile, read_file
from penstock_gateway.security.keys import KeyRing

if TYPE_CHECKING:
    import grpc

log = logging.getLogger(__name__)
SETTING_INVALID, PORT_UNAVAILABLE = "SETTING_INVALID", "PORT_UNAVAILABLE"
_MIN_KEY_BYTES = 32


class Certificate:
    """A certificate chain and its private key, of files."""

    def __init__(self, certificate: str, key: str):
        """OSError where a file cannot be read, ValueError where the two are no certificate and its key."""
        self._files = (WatchedFile(certificate), WatchedFile(key))
        self._problem = ""
        self._read = self._pair = self._contents()
        self._check()

    @classmethod
    def of(cls, config: Config) -> "Certificate | None":
        """That of the options; None where they have none."""
        if config.tls_cert is None or config.tls_key is None:
            return None
        return cls(config.tls_cert, config.tls_key)

    def refresh(self) -> bool:
        """Reads the files; True once where they are others than before, and right. It may take long."""
        try:
            for file in self._files:
                file.changed()
            self._problem = ""
            if (contents := self._contents()) == self._read:
                return False
            self._read = contents
            self._check()
        except (OSError, ValueError) as error:
            if str(error) != self._problem:
                log.error("the certificate stays as it is: %s", error)
            self._problem = str(error)
            return False
        self._pair = self._read
        log.info("read the certificate %s again", self._files[0].path)
        return True

    def load_into(self, context: ssl.SSLContext) -> None:
        """Gives it to all later connections of the context."""
        _load(context, *self._pair)

    def credentials(self) -> "grpc.ServerCredentials":
        """For a gRPC port. They follow `refresh`."""
        import grpc  # not above: the command chooses gRPC's settings after it has checked the files

        served = self._pair

        def fetch() -> Any:
            nonlocal served
            if served is self._pair:
                return None
            served = self._pair
            return configuration()

        def configuration() -> Any:
            return grpc.ssl_server_certificate_configuration([served[::-1]])

        return grpc.dynamic_ssl_server_credentials(configuration(), fetch)

    def _contents(self) -> tuple[bytes, bytes]:
        certificate, key = self._files
        return certificate.content, key.content

    def _check(self) -> None:
        """ValueError where what was read is no certificate and its key."""
        try:
            _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), *self._read)
        except OSError as error:
            files = "--tls-cert {}, --tls-key {}".format(*(file.path for file in self._files))
            raise ValueError(f"{files}: no PEM certificate with its private key ({error})") from error


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """As `load_cert_chain`, which takes files alone: here they are in memory, so that it never waits."""
    with ExitStack() as stack:
        paths = []
        for content in (certificate, key):
            file = stack.enter_context(open(os.memfd_create("pem"), "wb", buffering=0))
            file.write(content)
            paths.append(f"/proc/self/fd/{file.fileno()}")
        context.load_cert_chain(paths[0], paths[1], password="")


class StartError(Exception):
    """The gateway cannot start. The text is "CODE: message", with codes of `penstock`."""

    def __init__(self, code: str, message: str):
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


@dataclass(frozen=True)
class Files:
    """Contents of the files."""

    keys: KeyRing
    signing_key: bytes


def read_config(environment: Mapping[str, str] = os.environ, args: argparse.Namespace | None = None) -> Config:
    """The options. StartError names a wrong one and what is accepted."""
    try:
        return Config.read(environment, args)
    except ValueError as error:
        raise StartError(SETTING_INVALID, str(error)) from None


def read_files(config: Config, environment: Mapping[str, str] = os.environ) -> Files:
    """Reads the keys and the signing key, and checks the certificate. StartError names the option of a wrong file."""
    keys, signing_key = KeyRing(), os.urandom(_MIN_KEY_BYTES)
    if config.keys is not None:
        with _naming("keys", config, environment):
            keys = KeyRing.read(Path(config.keys))
    if config.secret is not None:
        with _naming("secret", config, environment):
            signing_key = read_file(config.secret)
            if len(signing_key) < _MIN_KEY_BYTES:
                raise ValueError(f"has {len(signing_key)} bytes; accepted: {_MIN_KEY_BYTES} or more")
    _check_tls(config, environment)
    return Files(keys, signing_key)


def _check_tls(config: Config, environment: Mapping[str, str]) -> None:
    if config.tls_cert is None or config.tls_key is None:
        return
    for name in ("tls_cert", "tls_key"):
        with _naming(name, config, environment):
            read_file(getattr(config, name))
    try:
        Certificate(config.tls_cert, config.tls_key)
    except ValueError as error:
        raise StartError(SETTING_INVALID, str(error)) from error


@contextmanager
def _naming(name: str, config: Config, environment: Mapping[str, str]) -> Iterator[None]:
    """Errors of the option's file, with its flag or variable."""
    option, path = Config.option(name), getattr(config, name)
    source = option.source(None if environment.get(option.variable) == path else path)
    try:
        yield
    except FileNotFoundError:
        raise StartError(SETTING_INVALID, f"{source} is {path!r}: no such file") from None
    except OSError as error:
        raise StartError(SETTING_INVALID, f"{source} is {path!r}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise StartError(SETTING_INVALID, f"{source} is {path!r}: {error}") from None
