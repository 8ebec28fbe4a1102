"""The wheels of the client and of the core have no package in common: the copies of shared files are equal."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["sound_file.py", "channels.py"])
def test_the_client_reads_files_as_the_core_does(name):
    core, client = (ROOT / "src/penstock/frontend" / name, ROOT / "client/src/penstock_client" / name)
    assert core.read_text() == client.read_text()
