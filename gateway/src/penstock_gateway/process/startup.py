"""Checks before a gateway starts: its options and the files that they name. `penstock serve` checks it, too."""

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock_gateway.config import Config
from penstock_gateway.process.tls import Certificate
from penstock_gateway.security.files import read_file
from penstock_gateway.security.keys import KeyRing

SETTING_INVALID, PORT_UNAVAILABLE = "SETTING_INVALID", "PORT_UNAVAILABLE"
_MIN_KEY_BYTES = 32


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
