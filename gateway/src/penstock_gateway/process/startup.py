"""Checks before a gateway starts: its options and the files that they name, which `penstock serve` checks, too.

The certificate is also read again while the gateway runs.
"""

import argparse
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock_gateway.config import Config
from penstock_gateway.security.files import Followed, WatchedFile, read_file
from penstock_gateway.security.keys import KeyRing
from penstock_gateway.stream.masks import WordMasks

if TYPE_CHECKING:
    import grpc

SETTING_INVALID, PORT_UNAVAILABLE = "SETTING_INVALID", "PORT_UNAVAILABLE"
_MIN_KEY_BYTES = 32
_OTHER_KEY = ("KEY_VALUES_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
"""OpenSSL's reasons where the private key is another one, or of another algorithm."""
_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL."""


class Pair(NamedTuple):
    """A certificate chain and its private key in PEM, and the end of its validity in Unix time."""

    certificate: bytes
    key: bytes
    not_after_s: float


class Certificate(Followed[Pair]):
    """A certificate chain and its private key, of files. It is served until another one can be."""

    def __init__(self, certificate: str, key: str, now_s: Callable[[], float] = time.time):
        """OSError where a file cannot be read, ValueError where the two cannot be served now."""
        self._now_s = now_s
        super().__init__("certificate", (certificate, key), self._checked)

    @classmethod
    def of(cls, config: Config) -> "Certificate | None":
        """Certificate of the options; None where they have none."""
        if config.tls_cert is None or config.tls_key is None:
            return None
        return cls(config.tls_cert, config.tls_key)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Gives it to all later connections of the context."""
        _load(context, self.value)

    def credentials(self) -> "grpc.ServerCredentials":
        """For a gRPC port. They follow `refresh`."""
        import grpc  # not above: the command chooses gRPC's settings after it has checked the files

        served = self.value

        def fetch() -> Any:
            nonlocal served
            if served is self.value:
                return None
            served = self.value
            return configuration()

        def configuration() -> Any:
            return grpc.ssl_server_certificate_configuration([(served.key, served.certificate)])

        return grpc.dynamic_ssl_server_credentials(configuration(), fetch)

    def _checked(self, files: Sequence[WatchedFile]) -> Pair:
        certificate, key = files
        named = f"--tls-cert {certificate.path}, --tls-key {key.path}"
        pair = Pair(certificate.content, key.content, 0.0)
        try:
            shown = _shown(pair)
        except OSError as error:
            if getattr(error, "reason", "") in _OTHER_KEY:
                raise ValueError(f"{named}: the private key is not that of the certificate") from error
            problem = f"no PEM certificate that can be served with its private key ({error})"
            raise ValueError(f"{named}: {problem}") from error
        now_s, not_after_s = self._now_s(), ssl.cert_time_to_seconds(shown["notAfter"])
        if now_s < ssl.cert_time_to_seconds(shown["notBefore"]):
            raise ValueError(f"{named}: the certificate is not valid before {shown['notBefore']}")
        if now_s > not_after_s:
            raise ValueError(f"{named}: the certificate expired on {shown['notAfter']}")
        return pair._replace(not_after_s=not_after_s)


def _shown(pair: Pair) -> Any:
    """Decodes a certificate as a client that trusts it, in a handshake in memory. ssl.SSLError where it fails."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load(server, pair)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    with _in_memory(pair.certificate) as path:
        client.load_verify_locations(path)
    sent, received = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(received, sent), server.wrap_bio(sent, received, server_side=True)
    for end in (*ends, *ends, ends[0]):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return ends[0].getpeercert()


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    """Loads it as `load_cert_chain`, which takes files alone: here they are in memory, so that it never waits."""
    with _in_memory(pair.certificate) as certificate, _in_memory(pair.key) as key:
        context.load_cert_chain(certificate, key, password="")


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """The path of a file."""
    with open(os.memfd_create("pem"), "wb", buffering=0) as file:
        file.write(content)
        yield f"/proc/self/fd/{file.fileno()}"


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
    masks: WordMasks | None


def read_config(environment: Mapping[str, str] = os.environ, args: argparse.Namespace | None = None) -> Config:
    """The options. StartError names a wrong one and what is accepted."""
    try:
        return Config.read(environment, args)
    except ValueError as error:
        raise StartError(SETTING_INVALID, str(error)) from None


def read_files(config: Config, environment: Mapping[str, str] = os.environ) -> Files:
    """Reads the files but the certificate, which it checks. StartError names the option of a wrong file."""
    keys, signing_key, masks = KeyRing(), os.urandom(_MIN_KEY_BYTES), None
    if config.keys is not None:
        with _naming("keys", config, environment):
            keys = KeyRing.read(Path(config.keys))
    if config.secret is not None:
        with _naming("secret", config, environment):
            signing_key = read_file(config.secret)
            if len(signing_key) < _MIN_KEY_BYTES:
                raise ValueError(f"has {len(signing_key)} bytes; accepted: {_MIN_KEY_BYTES} or more")
    if config.mask_words is not None:
        with _naming("mask_words", config, environment):
            masks = WordMasks.parse(read_file(config.mask_words))
    _check_tls(config, environment)
    return Files(keys, signing_key, masks)


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
