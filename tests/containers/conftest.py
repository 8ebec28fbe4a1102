"""The composition of these tests, with its images, keys and folders, and the table of figures at the end."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.reporting import markdown_table
from tests.helpers.containers import Composition, docker
from trials.attacks import OTHER
from trials.gateway_attack import gateway_flags
from trials.server.recordings import Recording, make_recordings

ROOT = Path(__file__).parents[2]
IMAGES = ("cpu", "client", "gateway", "loadtest")
_FIGURES = pytest.StashKey[list[tuple[str, str]]]()


def pytest_configure(config: pytest.Config) -> None:
    """The figures of this run."""
    config.stash[_FIGURES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints them."""
    if rows := config.stash[_FIGURES]:
        terminalreporter.write_line(markdown_table(("what", "figure"), rows, left=2))


@pytest.fixture(scope="session")
def figures(request) -> list[tuple[str, str]]:
    """Subject of a figure, and the figure with its unit: printed at the end."""
    return request.config.stash[_FIGURES]


@pytest.fixture(scope="session")
def recordings() -> list[Recording]:
    """Whole recordings with this process's own results."""
    return make_recordings(ROOT / "models" / "an4-rnnt-hybrid", 60.0)


@pytest.fixture(scope="session")
def composition(tmp_path_factory, figures) -> Iterator[Composition]:
    """Builds the images. Ports are free ones of this machine; keys: OTHER, with 16 streams."""
    folder = tmp_path_factory.mktemp("composition")
    gateway_flags(folder, ((OTHER, 16),))
    (folder / "keys").chmod(0o644)
    user = (os.getuid(), os.getgid()) if os.getuid() else (10001, 10001)
    reports = folder / "reports"
    reports.mkdir()
    shutil.chown(reports, *user)
    ports = ("HTTP", "GRPC", "METRICS", "LOCUST", "GATEWAY_HTTP", "GATEWAY_GRPC", "PROMETHEUS")
    made = Composition(
        {f"{name}_PORT": "0" for name in ports}
        | {
            "GATEWAY_KEYS": str(folder / "keys"),
            "GATEWAY_MEMORY": "1g",
            "LOADTEST_REPORTS": str(reports),
            "LOADTEST_USER": f"{user[0]}:{user[1]}",
            "STREAMS": "4",
            "MINUTES": "0.5",
        }
    )
    begin_s = time.monotonic()
    for service in ("server", "client", "gateway", "loadtest"):
        made.compose("build", service)
    figures.append(("build of four images", f"{time.monotonic() - begin_s:.0f} s"))
    base = int(docker("image", "inspect", "--format", "{{.Size}}", made.environment["PYTHON_IMAGE"]))
    figures.append(("base image", f"{base / 1e9:.2f} GB"))
    for name in IMAGES:
        size = int(docker("image", "inspect", "--format", "{{.Size}}", f"{made.project}:{name}"))
        figures.append((f"image {name}", f"{size / 1e9:.2f} GB, {(size - base) / 1e9:.2f} GB beyond its base"))
    try:
        yield made
    finally:
        made.down()
