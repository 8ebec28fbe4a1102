"""The units for systemd: systemd accepts them, and their limits fit those of the server and the gateway."""

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.commands.serve import REJECTED
from penstock.serving.settings import ServeOptions
from penstock_gateway.config import Config
from penstock_gateway.limits import MAX_CONNECTIONS
from penstock_gateway.process import main as gateway

ROOT = Path(__file__).parents[2]
UNITS = [ROOT / "docker" / f"{name}.service" for name in ("penstock", "penstock-gateway")]


def service_of(unit: Path) -> dict[str, str]:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str
    parser.read_string(unit.read_text(encoding="utf-8"))
    return dict(parser["Service"])


def test_its_limits_fit_the_servers():
    service = service_of(UNITS[0])
    assert service["ExecStart"].split()[1:] == ["serve"]
    assert int(service["TimeoutStopSec"]) >= ServeOptions().drain_seconds + 10
    assert int(service["LimitNOFILE"]) > 128 + ServeOptions().max_streams
    assert service["Restart"] == "on-failure"
    assert int(service["RestartPreventExitStatus"]) == REJECTED
    variables = dict(entry.split("=") for entry in service["Environment"].split())
    assert variables.keys() <= ServeOptions().variables().keys() | {"PENSTOCK_CACHE", "HF_HOME"}
    writable = Path("/var/cache", service["CacheDirectory"])  # all that a dynamic user can write to
    assert all(Path(variables[name]).is_relative_to(writable) for name in ("PENSTOCK_CACHE", "HF_HOME"))


def test_the_gateway_has_limits_of_its_own_and_is_hardened_as_the_server():
    service, of_server = map(service_of, reversed(UNITS))
    assert int(service["TimeoutStopSec"]) >= Config().drain_seconds + 10
    assert int(service["LimitNOFILE"]) > 2 * MAX_CONNECTIONS
    assert int(service["RestartPreventExitStatus"]) == gateway.REJECTED
    for name in ("Environment", "CacheDirectory"):
        del of_server[name]
    assert service == of_server | {name: service[name] for name in ("ExecStart", "LimitNOFILE")}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_it(unit, tmp_path):
    copy = tmp_path / unit.name
    command = re.escape(service_of(unit)["ExecStart"].split()[0])
    copy.write_text(re.sub(command, sys.executable, unit.read_text(encoding="utf-8")))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    own = [line for line in done.stderr.splitlines() if unit.name in line]
    assert not own, own
