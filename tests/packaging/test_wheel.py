"""The wheel is complete: built from the checkout's files, installed without it, it serves and transcribes.

The environment has the wheels of the core and the client of its own, and this environment's other packages by a path
file. That leaves out what this environment installed from the checkout. scripts/first_hour.sh resolves everything from
the package index.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

from client.tests.helpers import wheels
from penstock_client import Client

ROOT = Path(__file__).parents[2]
RECORDING = ROOT / "tests/data/an4/flac/an395-mjwl-b.flac"
WORDS = "enter one oh four"
SOURCES = (*wheels.SOURCES, "model_repository", "models/an4-rnnt-hybrid")
LOG_LIMIT_S = 120  # a busy machine

pytestmark = pytest.mark.server


def checked(*command: str | Path, **options: object) -> str:
    """Standard output of a command that must end with status 0."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=LOG_LIMIT_S, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return wheels.build_wheel(ROOT, tmp_path_factory.mktemp("core"), SOURCES)


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> dict[str, str]:
    """Variables of a shell with the wheel's commands on its path."""
    folder = tmp_path_factory.mktemp("venv")
    checked(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    client = wheels.build_wheel(ROOT / "client", tmp_path_factory.mktemp("client"))
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index")
    checked(*pip, wheel, client)
    site_packages = checked(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    # Path files in a folder that a path file names are not read, and so neither are those of editable packages.
    (Path(site_packages) / "others.pth").write_text(str(Path(torch.__file__).parents[1]))
    own = {name: text for name, text in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTHON"))}
    return own | {"PATH": os.pathsep.join([str(python.parent), own["PATH"]])}


def test_it_has_every_module_the_model_repository_and_one_model(wheel):
    package = ROOT / "src" / "penstock"
    modules = {str(path.relative_to(package)) for path in package.rglob("*.py")}
    expected = {name for name in modules if not name.startswith("bundled/")} | {"evaluation/report.html"}
    for folder in (ROOT / "model_repository", ROOT / "models" / "an4-rnnt-hybrid", package / "bundled" / "speech"):
        files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        expected |= {f"bundled/{path.relative_to(folder.parent)}" for path in files}
    with ZipFile(wheel) as archive:
        held = {name.removeprefix("penstock/") for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected


def test_it_transcribes_without_the_checkout(environment, tmp_path):
    where = checked("python", "-c", "import penstock; print(penstock.__file__)", cwd=tmp_path, env=environment)
    assert Path(where).is_relative_to(Path(environment["PATH"].split(os.pathsep)[0]).parent)
    assert checked("penstock", "transcribe", RECORDING, cwd=tmp_path, env=environment) == f"{WORDS}\n"


@pytest.fixture
def server(environment, tmp_path) -> Iterator[str]:
    """Starts `penstock serve` without a model, for a few streams; what it has printed when it is ready."""
    log = tmp_path / "server.log"
    options = [*(f"--{name}-port=0" for name in ("http", "grpc", "metrics")), "--max-streams=2"]
    with log.open("w") as file:
        process = subprocess.Popen(
            ["penstock", "serve", *options], stdout=file, stderr=file, cwd=tmp_path, env=environment
        )
    try:
        deadline_s = time.monotonic() + LOG_LIMIT_S
        while "server: ready after" not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.1)
        yield log.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(LOG_LIMIT_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.nightly
def test_it_serves_without_the_checkout(server):
    assert " server: no --model: using the bundled an4-rnnt-hybrid" in server
    with Client(re.search(r"gRPC (\S+?),", server)[1]) as client:
        assert client.transcribe(RECORDING).text == WORDS
