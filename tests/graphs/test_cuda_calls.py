"""Calls of `graphs/cuda_calls.py` against the installed cuda-bindings: names and arguments (`make test-kernels`).

Their wheels can be imported without a driver; nothing is called.
"""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

driver = pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")
from cuda.bindings import nvrtc  # noqa: E402

from penstock.graphs import cuda_calls  # noqa: E402

MODULES = {"driver": driver, "nvrtc": nvrtc}
TREE = ast.parse(Path(cuda_calls.__file__).read_text(encoding="utf-8"))


def attributes() -> Iterator[tuple[str, str]]:
    """Module and dotted name of everything that is read from the two modules."""
    for node in ast.walk(TREE):
        parts, value = [], node
        while isinstance(value, ast.Attribute):
            parts.insert(0, value.attr)
            value = value.value
        if parts and isinstance(value, ast.Name) and value.id in MODULES:
            yield value.id, ".".join(parts)


def test_every_name_is_there():
    found = set(attributes())
    assert ("driver", "cuGraphInstantiate") in found and len(found) > 20
    for module, name in found:
        value = MODULES[module]
        for part in name.split("."):
            assert hasattr(value, part), f"{module}.{name}"
            value = getattr(value, part)


def test_every_call_has_the_arguments_of_its_function():
    """A call by `_with_edge_data` has those of the form that it chooses for this version."""
    checked = 0
    for node in ast.walk(TREE):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", None) in MODULES:
            function = getattr(MODULES[node.func.value.id], node.func.attr)
        elif isinstance(node.func, ast.Call) and getattr(node.func.func, "id", None) == "_with_edge_data":
            function = cuda_calls._with_edge_data(node.func.args[0].value)
        else:
            continue
        if not inspect.isclass(function):
            inspect.signature(function).bind(*node.args)
            checked += 1
    assert checked > 18


def test_a_conditional_node_has_the_fields_that_are_set():
    conditional = driver.CUgraphNodeParams().conditional
    assert all(hasattr(conditional, name) for name in ("handle", "type", "size", "ctx", "phGraph_out"))
