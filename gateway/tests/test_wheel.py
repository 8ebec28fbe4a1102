"""The wheel, built from the repository without a network."""

import re
import shutil
import subprocess
import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

GATEWAY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    source, out = tmp_path_factory.mktemp("gateway"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(GATEWAY / name, source)
    # A build writes beside its sources, and the files of an earlier build would end up in the wheel.
    shutil.copytree(GATEWAY / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.iterdir()
    with ZipFile(path) as archive:
        yield archive


def file_named(archive, ending):
    (name,) = (name for name in archive.namelist() if name.endswith(ending))
    return archive.read(name)


def test_every_file_is_in_it(wheel):
    package = GATEWAY / "src" / "penstock_gateway"
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == {f"penstock_gateway/{path.relative_to(package)}" for path in files}


def test_it_does_not_require_torch_or_the_server(wheel):
    metadata = message_from_bytes(file_named(wheel, ".dist-info/METADATA"))
    requirements = metadata.get_all("Requires-Dist")
    always = {re.match(r"[\w.-]+", each)[0] for each in requirements if "extra ==" not in each}
    assert always >= {"penstock-client", "av"}
    assert not always & {"torch", "penstock"}
    assert metadata.get_all("Provides-Extra") == ["tracing"]


def test_it_installs_the_command(wheel):
    assert b"penstock-gateway = penstock_gateway.process.main:main" in file_named(wheel, ".dist-info/entry_points.txt")
