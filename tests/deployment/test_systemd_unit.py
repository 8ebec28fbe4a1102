"""The unit for systemd: systemd accepts it, and its limits fit the server's."""

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.commands.serve import REJECTED
from penstock.serving.settings import ServeOptions

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "docker" / "penstock.service"


@pytest.fixture(scope="module")
def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str
    parser.read_string(UNIT.read_text(encoding="utf-8"))
    return parser


def test_its_limits_fit_the_servers(unit):
    service = unit["Service"]
    assert service["ExecStart"].split()[1:] == ["serve"]
    assert int(service["TimeoutStopSec"]) >= ServeOptions().drain_seconds + 10
    assert int(service["LimitNOFILE"]) > 128 + ServeOptions().max_streams
    assert service["Restart"] == "on-failure"
    assert int(service["RestartPreventExitStatus"]) == REJECTED
    variables = dict(entry.split("=") for entry in service["Environment"].split())
    assert variables.keys() <= ServeOptions().variables().keys() | {"PENSTOCK_CACHE", "HF_HOME"}
    writable = Path("/var/cache", service["CacheDirectory"])  # all that a dynamic user can write to
    assert all(Path(variables[name]).is_relative_to(writable) for name in ("PENSTOCK_CACHE", "HF_HOME"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_it(unit, tmp_path):
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/penstock/bin/penstock", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    own = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert not own, own
