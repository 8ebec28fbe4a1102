"""Each package of penstock imports only packages below it (docs/architecture.md), and serving imports no trainer."""

import ast
import functools
import subprocess
from collections import Counter
from pathlib import Path

import penstock_client

SOURCES = Path(__file__).parents[1] / "src" / "penstock"
GATEWAY = Path(__file__).parents[1] / "gateway" / "src" / "penstock_gateway"
COMMON = Path(__file__).parents[1] / "client" / "src" / "penstock_common"
FLOORS = (
    ("cli",), ("commands",), ("adaptation", "evaluation"), ("serving",), ("transcription",), ("recognizer",),
    ("pipeline",), ("decoding", "endpointing"), ("scoring", "speakers"), ("encoder",), ("frontend",), ("kernels",),
    ("graphs", "model"), ("linear", "reporting"), ("runtime",), ("errors", "extras", "version"),
)  # fmt: skip
"""From the top; packages of one floor do not import each other."""
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}
TOOL_FLOORS = (("scripts", "trials"), ("benchmarks",), ("loadtest", "recipes"))
"""The tools', as `FLOORS`."""
TOOLS = {name: floor for floor, names in enumerate(TOOL_FLOORS) for name in names}
MAX_TOOLS_PERCENT = 22
"""Percentage of the lines of code that are not blank, without tests and generated code (CONTRIBUTING.md)."""
ALWAYS_BANNED = {"transformers", "tests", *TOOLS}
GRAPH_BUILDING = SOURCES / "scoring" / "wfst" / "building"
"""The only importer of kaldifst; imported only by itself and, when it runs, by `penstock graph`."""


@functools.cache
def imports(path: Path) -> set[str]:
    """Dotted names of everything that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_imports_point_down() -> None:
    for path in sorted(SOURCES.rglob("*.py")):
        check_imports(path)


def check_imports(path: Path) -> None:
    own = path.relative_to(SOURCES).parts[0].removesuffix(".py")
    for name in imports(path):
        package, _, rest = name.partition(".")
        assert package not in ALWAYS_BANNED, f"{path} imports {name}"
        assert package != "nemo", f"{path} imports {name}: only the oracle tests and recipes import NeMo"
        if path.parent != GRAPH_BUILDING:
            assert package != "kaldifst", f"{path} imports kaldifst"
            is_command = path == SOURCES / "commands" / "graph.py"
            assert is_command or not name.startswith("penstock.scoring.wfst.building"), f"{path} imports {name}"
        used = rest.partition(".")[0]
        if package == "penstock" and own != "__init__" and used != own:
            assert FLOOR[used] > FLOOR[own], f"{path} imports {name}"


def test_only_what_talks_to_a_server_imports_the_client() -> None:
    talking = {SOURCES / "evaluation" / "server_runs.py", GATEWAY / "config.py", *(GATEWAY / "stream").glob("*.py")}
    for path in (*SOURCES.rglob("*.py"), *GATEWAY.rglob("*.py")):
        used = {name.removeprefix("penstock_client.") for name in imports(path) if name.startswith("penstock_client")}
        assert path in talking or not used, f"{path} imports {used}"
        common = {name for name in used if penstock_client._HOMES.get(name, "").startswith("penstock_common.")}
        assert not common, f"{path} imports {common}; accepted: from penstock_common"


def test_the_common_package_imports_no_other() -> None:
    for path in COMMON.rglob("*.py"):
        others = {"penstock", "penstock_client", "penstock_gateway"}
        assert not {name.partition(".")[0] for name in imports(path)} & others, path


def test_tools_import_tools_below_them_and_no_tests() -> None:
    root = SOURCES.parents[1]
    found = {(tool, name) for tool in TOOLS for path in (root / tool).rglob("*.py") for name in imports(path)}
    assert len(found) > 300
    for tool, name in found:
        used = name.partition(".")[0]
        assert used != "tests" and ".tests." not in name, f"{tool} imports {name}"
        assert used not in TOOLS or used == tool or TOOLS[used] > TOOLS[tool], f"{tool} imports {name}"


def test_only_what_everything_needs_stands_at_the_top() -> None:
    assert len(list(SOURCES.glob("*.py"))) <= 8, "a new file belongs into a package"


def test_every_package_has_a_floor() -> None:
    packages = {path.name.removesuffix(".py") for path in SOURCES.iterdir()}
    assert packages - {"__init__", "__pycache__", "bundled", "py.typed"} == FLOOR.keys()


def test_instruments_are_a_small_part_of_the_code() -> None:
    root, lines = SOURCES.parents[1], Counter[bool]()
    command = ["git", "ls-files", "*.py", ":!:*tests/*", ":!:*_pb2.py", ":!:*_pb2_grpc.py"]
    for name in subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines():
        code = (root / name).read_text(encoding="utf-8").splitlines()
        lines[name.partition("/")[0] in TOOLS] += sum(bool(line.strip()) for line in code)
    percent = 100 * lines[True] / lines.total()
    assert percent <= MAX_TOOLS_PERCENT, f"{lines[True]} of {lines.total()} lines: {percent:.1f} %"
