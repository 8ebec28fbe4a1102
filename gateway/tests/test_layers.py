"""Each package of the gateway imports only packages below it, and none needs torch or the core."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock_client
import penstock_gateway
from tests.test_layers import imports

SOURCES = Path(penstock_gateway.__file__).parent
FLOORS = (
    ("__main__",), ("process",), ("app",), ("captions", "openai", "realtime"), ("http", "riva"), ("rpc",),
    ("gateway",), ("stream",), ("audio", "config"), ("security",), ("validation",),
    ("errors", "tracing"), ("limits", "version"),
)  # fmt: skip
"""From the top; packages of one floor do not import each other."""
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}
BANNED = {"torch", "penstock", "tritonclient", "tests", "gateway"}
MAX_ATTRIBUTES = 18
NO_WAITS = {
    "DEFAULT_LIFETIME_S", "DEFAULT_SILENCE_MS", "MAX_CPU_S", "MAX_LIFETIME_S", "MAX_QUIET_CPU_S", "MIN_LIFETIME_S",
    "_EAGERNESS_MS", "_LIVE_S", "_MORE_REPLAY_S", "_NO_SPEECH_MS",
}  # fmt: skip
"""Lengths of audio, times of a CPU, lifetimes."""
SOCKETS = {"fastapi", "starlette", "uvicorn", "grpc"}


def test_imports_point_down():
    for path in SOURCES.rglob("*.py"):
        check_imports(path)


def check_imports(path):
    own = path.relative_to(SOURCES).parts[0].removesuffix(".py")
    for name in imports(path):
        package, _, rest = name.partition(".")
        assert package not in BANNED, f"{path} imports {name}"
        used = rest.partition(".")[0]
        if package == "penstock_gateway" and own != "__init__" and used != own:
            assert FLOOR[used] > FLOOR[own], f"{path} imports {name}"


@pytest.mark.parametrize("package", ["stream", "security", "audio"])
def test_what_protocols_share_knows_no_socket(package):
    for path in (SOURCES / package).glob("*.py"):
        assert not {name.partition(".")[0] for name in imports(path)} & SOCKETS, path


def test_times_to_wait_are_in_one_file():
    texts = [path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py") if path.name != "limits.py"]
    constants = re.findall(r"^([A-Z0-9_, ]+) = ", "\n".join(texts), re.MULTILINE)
    assert {name for names in constants for name in names.split(", ") if name.endswith(("_S", "_MS"))} <= NO_WAITS


def test_no_object_has_many_attributes():
    """Also of the client."""
    for path in (*SOURCES.rglob("*.py"), *Path(penstock_client.__file__).parent.rglob("*.py")):
        for kind in ast.parse(path.read_text(encoding="utf-8")).body:
            stored = (
                each for each in ast.walk(kind) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
            )
            owned = {each.attr for each in stored if ast.unparse(each.value) == "self"}
            assert len(owned) <= MAX_ATTRIBUTES, f"{path}: {owned}"


def test_every_package_has_a_floor():
    packages = {path.name.removesuffix(".py") for path in SOURCES.iterdir()}
    assert packages - {"__init__", "__pycache__", "py.typed"} <= FLOOR.keys()


def test_the_command_does_not_import_grpc_before_it_has_chosen_its_settings():
    script = "import sys, penstock_gateway.process.main; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
