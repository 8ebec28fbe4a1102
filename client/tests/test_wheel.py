"""The wheel, built from the repository without a network."""

from pathlib import Path
from zipfile import ZipFile

import pytest

from client.tests.helpers.wheels import build_wheel, file_named, requirements

CLIENT = Path(__file__).parents[1]
REQUIRED = {"tritonclient", "grpcio", "aiohttp", "numpy", "sentencex", "soundfile", "soxr", "pydantic"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    with ZipFile(build_wheel(CLIENT, tmp_path_factory.mktemp("client"))) as archive:
        yield archive


def test_every_module_and_the_types_marker_are_in_it(wheel):
    sources = CLIENT / "src"
    modules = {str(path.relative_to(sources)) for path in sources.rglob("*.py")}
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert len(modules) > 30
    assert held == modules | {"penstock_client/py.typed", "penstock_common/py.typed"}


def test_it_does_not_require_torch(wheel):
    assert requirements(wheel) == {"": REQUIRED, "mic": {"sounddevice"}, "media": {"av"}}


def test_it_installs_the_command(wheel):
    assert b"penstock-client = penstock_client.cli.__main__:main" in file_named(wheel, ".dist-info/entry_points.txt")
