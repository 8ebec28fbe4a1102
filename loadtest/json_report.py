"""The report as JSON: what was asked for, on what, and each window's figures. docs/load_testing.md tells the fields."""

import json
import math
import os
import shlex
import sys
from pathlib import Path

from penstock.errors import PenstockError
from penstock.reporting.hardware import describe_hardware
from penstock.reporting.software import commit, date_utc, package_versions
from penstock.version import __version__

FORMAT, FORMAT_VERSION = "penstock-loadtest", 1
_PACKAGES = ("locust", "gevent", "grpcio", "tritonclient", "numpy")
_OPTIONS = (
    "url", "protocol", "shape", "streams", "minutes", "stagger_seconds", "recordings", "piece_ms", "seed",
    "reply_timeout", "chunk_ms", "processes", "decoder", "beam_size", "n_best", "lm_weight", "boost_phrase",
    "boosted_phrases", "boost",
)  # fmt: skip


def read_setup(path: str) -> dict:
    """What else is known of the server and the command; empty without a file. PenstockError for anything but JSON."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
    except OSError as error:
        raise PenstockError(f"--setup: {path}: {error.strerror}") from error
    except ValueError as error:
        raise PenstockError(f"--setup: {path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise PenstockError(f"--setup: {path}: not a JSON object")
    return found


def make_folder(path: Path) -> None:
    """The folder that the report goes to. PenstockError where nothing can be written there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PenstockError(f"--out: {path}: {error.strerror}") from error
    if not os.access(path, os.W_OK):
        raise PenstockError(f"--out: {path}: cannot be written to")


def report_document(options: dict, setup: dict, windows: list[dict]) -> dict:
    """The report of one test. `setup`: "command" and "server", as far as they are known."""
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "penstock": __version__,
        "circumstances": {
            "date": date_utc(),
            "hardware": describe_hardware(),
            "commit": commit(),
            "command": setup.get("command") or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "load_average": os.getloadavg()[0],
            "packages": package_versions(_PACKAGES),
        },
        "server": setup.get("server", {}),
        "options": {name: options[name] for name in _OPTIONS if name in options},
        "windows": windows,
    }


def write_json(path: Path, document: dict) -> None:
    """Makes the folder where needed. What is infinite or not a number becomes null, for which JSON has no word."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(finite(document), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise PenstockError(f"{path}: {error.strerror}") from error


def read_json(path: Path) -> dict:
    """A report that `write_json` has written. PenstockError for anything else."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PenstockError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise PenstockError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict) or (document.get("format"), document.get("version")) != (FORMAT, FORMAT_VERSION):
        raise PenstockError(f"{path}: not a report of a load test (format {FORMAT!r}, version {FORMAT_VERSION})")
    return document


def finite(value: object) -> object:
    """The value with None in place of every number that is not finite."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
