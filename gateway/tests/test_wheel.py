"""The wheel, built from the repository without a network."""

from pathlib import Path
from zipfile import ZipFile

import pytest

from client.tests.helpers.wheels import build_wheel, file_named, requirements

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
    required = requirements(wheel)
    assert required.keys() == {"", "tracing"}
    assert required[""] >= {"penstock-client", "av"} and not required[""] & {"torch", "penstock"}


def test_it_installs_the_command(wheel):
    assert b"penstock-gateway = penstock_gateway.process.main:main" in file_named(wheel, ".dist-info/entry_points.txt")
