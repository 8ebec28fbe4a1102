"""The wheels of the client and of the core have no package in common: the copies of shared files are equal."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["frontend/sound_file.py", "frontend/channels.py"])
def test_the_copy_of_the_client_is_that_of_the_core(name):
    core, client = ROOT / "src/penstock" / name, ROOT / "client/src/penstock_client" / Path(name).name
    assert core.read_text() == client.read_text()
