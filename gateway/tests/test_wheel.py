"""The wheel, built from the repository without a network."""

import re
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

from client.tests.helpers.wheels import build_wheel, file_named

GATEWAY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    with ZipFile(build_wheel(GATEWAY, tmp_path_factory.mktemp("gateway"))) as archive:
        yield archive


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
