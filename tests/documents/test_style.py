"""Docstrings begin with a verb or the thing itself, and each class of the product has a name of its own.

`make check` runs this.
"""

import ast
import functools
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PRODUCT = ("src/", "client/src/", "gateway/src/")
ELLIPSIS = re.compile(
    r"[^\w`]*(as|how|of|that|those|what|when|where|which|who|whom|whose|such|there"
    r"|he|her|his|i|it|its|she|their|them|these|they|this|we|you)\b",
    re.IGNORECASE,
)
"""First words that leave the thing itself out."""
SHARED_NAMES = {
    "Alternative": "of the server, and as the client reads it",
    "AudioError": "public in both packages: unusable audio",
    "ChunkGeometry": "of the model, and as far as the client knows it",
    "PackageError": "public in both packages: an optional package is missing",
    "Stream": "public in both packages: of a server, and of a recognizer in the same process",
    "StreamError": "public in both packages: of one stream",
    "StreamResult": "public in both packages: the answer to a request of a stream",
    "Word": "of the server, and as the client reads it",
}
"""Names of two classes, one in the server and one in a package without torch, and why both have it."""


def docstrings(nodes: list[ast.AST]) -> Iterator[ast.Constant]:
    """Docstrings of the module, its classes and functions, and the texts behind attributes."""
    for node in nodes:
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        has_own = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        for before, statement in zip([None, *body], body, strict=False):
            if (has_own if before is None else isinstance(before, (ast.Assign, ast.AnnAssign))) and (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                yield statement.value


class Class(NamedTuple):
    place: str
    name: str
    bases: list[str]


class Source(NamedTuple):
    """Checked parts of a file, without its tree: those of all files would slow each garbage collection down."""

    classes: list[Class]
    docstrings: list[ast.Constant]


@functools.cache
def sources() -> dict[str, Source]:
    """Every Python file that is not generated, by its name relative to the repository."""
    command = ["git", "ls-files", "*.py", ":!:*_pb2.py", ":!:*_pb2_grpc.py"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return {name: read(name) for name in names}


def read(name: str) -> Source:
    nodes = list(ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))))
    classes = [
        Class(f"{name}:{node.lineno}", node.name, list(map(ast.unparse, node.bases)))
        for node in nodes
        if isinstance(node, ast.ClassDef)
    ]
    return Source(classes, list(docstrings(nodes)))


def test_named_tuples_have_no_second_base() -> None:
    """Python 3.10 rejects one."""
    classes = [each for source in sources().values() for each in source.classes]
    assert [each.place for each in classes if "NamedTuple" in each.bases and len(each.bases) > 1] == []


def test_docstrings_begin_with_a_verb_or_the_thing_itself() -> None:
    found = [
        f"{name}:{text.lineno}: {text.value.strip()[:60]}"
        for name, source in sources().items()
        for text in source.docstrings
        if ELLIPSIS.match(text.value)
    ]
    assert not found, "\n".join(found)


def test_classes_have_names_of_their_own() -> None:
    files = defaultdict[str, list[str]](list)
    for name, source in sources().items():
        if name.startswith(PRODUCT):
            for each in source.classes:
                files[each.name].append(name)
    shared = {name: found for name, found in files.items() if len(found) > 1}
    assert shared.keys() <= SHARED_NAMES.keys(), {name: shared[name] for name in shared.keys() - SHARED_NAMES.keys()}
    assert all(len(found) == 2 for found in shared.values()), shared
