"""`python -m trials.long_upload`: a long recording through nginx, silence with speech at its end.

nginx has its defaults: it ends a request whose reply sends nothing for 60 s. JSON and events must arrive with the
words; text has no keep-alive, and shows what nginx does. Prints a table; the exit status is 1 where one is wrong.
Where nginx is not installed, nothing is run; it is the package nginx-light of Debian.
"""

import argparse
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import soundfile

from loadtest.fresh_gateway import fresh_gateway, is_open
from loadtest.locust_run import ServerPlan, fresh_server
from loadtest.options import BUNDLE, DEFAULT_RECORDINGS
from penstock.errors import PenstockError
from penstock.evaluation.manifest import read_manifest
from penstock.serving.launch import LOOPBACK, Ports, claim_ports
from trials.edge_check import Finding, post, print_rows, running_proxy, upload
from trials.gateway_attack import SAMPLE_RATE_HZ, samples_of

NGINX_WAITS_S = 60.0
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@contextmanager
def running_nginx(gateway: str, folder: Path) -> Iterator[str]:
    """nginx before a gateway; yields its HOST:PORT. Raises RunError if it does not start."""
    address = f"{LOOPBACK}:{next(iter(claim_ports(Ports(), LOOPBACK)))}"
    paths = "".join(f"{name}_temp_path {folder}/{name};" for name in _TEMPORARY)  # its own are root's
    server = f"server {{ listen {address}; location / {{ proxy_pass http://{gateway}; }} }}"
    folder.chmod(0o711)  # where root starts it, its workers are another user's
    config = folder / "nginx.conf"
    config.write_text(f"daemon off; pid {folder}/pid; events {{}} http {{ access_log off; {paths} {server} }}")
    with running_proxy(["nginx", "-e", "stderr", "-c", str(config)], lambda: is_open(address)):
        yield address


def text_of(body: bytes) -> str:
    """The text of a reply in JSON, or of the last of its events."""
    try:
        return str(json.loads(body.decode().rpartition("data: ")[2])["text"])
    except (ValueError, KeyError) as error:
        return f"none: {error!r}"


def check(address: str, recording: bytes, text: str) -> list[Finding]:
    """What each format gives."""
    rows = []
    for name, fields in (
        ("JSON", {}),
        ("verbose_json", {"response_format": "verbose_json"}),
        ("events", {"stream": "true"}),
    ):
        reply = post(address, recording, fields)
        found = text_of(reply.body)
        figure = f"{reply.status} after {reply.seconds:.0f} s, at most {reply.silent_s:.1f} s without a byte: {found}"
        rows.append(Finding(name, figure, (reply.status, found) == (200, text) and reply.silent_s < NGINX_WAITS_S))
    reply = post(address, recording, {"response_format": "text"})
    is_right = reply.status == (504 if reply.seconds >= NGINX_WAITS_S else 200)
    rows.append(Finding("text", f"{reply.status} after {reply.seconds:.0f} s", is_right))
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Checks the replies; returns the exit status."""
    parser = argparse.ArgumentParser(prog="trials.long_upload", description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=45.0, metavar="M", help="silence before the speech (45)")
    options = parser.parse_args(arguments)
    if shutil.which("nginx") is None:
        print("nginx: not run, it is not installed")
        return 0
    speech = read_manifest(DEFAULT_RECORDINGS)[0].audio
    samples = np.concatenate([np.zeros(round(options.minutes * 60 * SAMPLE_RATE_HZ), np.float32), samples_of(speech)])
    recording = io.BytesIO()
    soundfile.write(recording, samples, SAMPLE_RATE_HZ, format="FLAC")
    try:
        with (
            tempfile.TemporaryDirectory(prefix="penstock-nginx-") as folder,
            fresh_server(ServerPlan(BUNDLE, None, 16, 1)) as server,
            fresh_gateway(server.url("grpc")) as gateway,
            running_nginx(gateway.http, Path(folder)) as address,
        ):
            rows = check(address, recording.getvalue(), upload(gateway.http, speech))
    except PenstockError as error:
        print(f"long_upload: error: {error}", file=sys.stderr)
        return 2
    return int(not print_rows("reply", rows))


if __name__ == "__main__":
    sys.exit(main())
