"""Self-signed certificates made with `openssl`: for a server on 127.0.0.1 and for a client."""

import subprocess
from pathlib import Path
from typing import NamedTuple


class Certificates(NamedTuple):
    """PEM files."""

    server: Path
    server_key: Path
    client: Path
    client_key: Path


def make_certificates(directory: Path) -> Certificates:
    """Valid for a day."""
    paths = Certificates(*(directory / f"{name}.pem" for name in Certificates._fields))
    _self_signed(paths.server, paths.server_key, "/CN=a test's server")
    _self_signed(paths.client, paths.client_key, "/CN=a test's client")
    return paths


def _self_signed(certificate: Path, key: Path, subject: str) -> None:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "1", "-subj", subject, "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
