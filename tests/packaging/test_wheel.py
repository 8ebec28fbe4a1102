"""The wheel is complete: built from the checkout's files, installed without it, it serves, transcribes and has types.

The environment has the wheels of the core and the client of its own, and this environment's other packages by a path
file. That leaves out what this environment installed from the checkout. scripts/first_hour.sh resolves everything from
the package index.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent, indent
from zipfile import ZipFile

import pytest
import torch

import penstock
import penstock_client
from client.tests.helpers import wheels
from client.tests.helpers.wheels import checked
from penstock_client import Client

ROOT = Path(__file__).parents[2]
RECORDING = ROOT / "tests/data/an4/flac/an395-mjwl-b.flac"
WORDS = "enter one oh four"
SOURCES = (*wheels.SOURCES, "model_repository", "models/an4-rnnt-hybrid")
LOG_LIMIT_S = 120  # a busy machine
EXAMPLE = re.compile(r"(?ms)^( *)```py\w*\n(.*?)^\1```$")
GIVEN = """\
import numpy as np
import numpy.typing as npt
from penstock_client import Client

client: Client
others: npt.NDArray[np.float32]
pieces: list[bytes]
samples: npt.NDArray[np.float32]
token: str

async def example() -> None:
"""
"""Names that examples take for granted."""
OPTIONS = """\
from penstock import DecodingConfig
from penstock_client import ConnectionOptions, StreamOptions

given = DecodingConfig(beam_size=8), ConnectionOptions(reconnect_s=10), StreamOptions(n_best=2)
"""
"""Every option has a default, here of all but one."""
WITHOUT_TYPES = re.compile(r"(?m)^( *(?:import|from)\b.*\b(?:livekit|openai|pipecat|soundfile|tritonclient)\b.*)$")
"""Imports of packages that have no types, or are not in this environment."""
MYPY = """\
[mypy]
strict = true
cache_dir = /dev/null
[mypy-torch.*]
follow_imports = skip
"""
"""mypy --strict, without half a minute for torch, which no example uses."""

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("uncompiled")]


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
    expected = {name for name in modules if not name.startswith("bundled/")} | {"evaluation/report.html", "py.typed"}
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


def examples() -> dict[str, str]:
    """Modules by name: each example of a page, by the line where it begins, and each file of client/examples."""
    modules = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "client" / "examples").glob("*.py")}
    for page in checked("git", "ls-files", "*.md", cwd=ROOT).split():
        text = (ROOT / page).read_text(encoding="utf-8")
        found = list(EXAMPLE.finditer(text))
        assert len(found) == text.count("```py"), page
        for match in found:
            line = 1 + text.count("\n", 0, match.start())
            modules[re.sub(r"\W", "_", f"{page}_{line}")] = GIVEN + indent(dedent(match[2]), "    ")
    return modules


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The examples, a module with options, and one per package with all public names."""
    modules = {**examples(), "options": OPTIONS}
    assert "many_streams" in modules and any(name.startswith("README_md_") for name in modules)
    for package in (penstock, penstock_client):
        modules[f"all_of_{package.__name__}"] = f"from {package.__name__} import {', '.join(package.__all__)}\n"
    folder = tmp_path_factory.mktemp("examples")
    for name, code in modules.items():
        (folder / f"{name}.py").write_text(WITHOUT_TYPES.sub(r"\1  # type: ignore", code), encoding="utf-8")
    (folder / "mypy.ini").write_text(MYPY)
    return folder


@pytest.mark.parametrize(
    ("checker", "program"),
    [
        (("pyright", "--pythonpath"), "node"),
        pytest.param(("mypy", "--python-executable"), "python", marks=pytest.mark.nightly),
    ],
    ids=["pyright", "mypy"],
)
def test_a_type_checker_accepts_every_example(checker, program, folder, environment):
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    python = shutil.which("python", path=environment["PATH"])
    checked(sys.executable, "-m", *checker, python, folder, cwd=folder, env=environment)
