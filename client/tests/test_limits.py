"""Rules of the client's engine: time limits have one home, and no class has many attributes."""

import ast
import re
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src" / "penstock_client"
ENGINE = ("batched/*.py", "client.py", "connection.py", "stream.py")
MAX_ATTRIBUTES = 18


def test_time_limits_are_in_one_module():
    constant = re.compile(r"^_?[A-Z_]+_M?S = [\d.]", re.MULTILINE)
    paths = [path for pattern in ENGINE for path in SOURCES.glob(pattern)]
    assert len(paths) > 15 and constant.search((SOURCES / "limits.py").read_text(encoding="utf-8"))
    assert not [path.name for path in paths if constant.search(path.read_text(encoding="utf-8"))]


def test_classes_have_few_attributes():
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                own = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute) and _is_own(each)}
                assert len(own) <= MAX_ATTRIBUTES, f"{path.name}: {node.name}"


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
