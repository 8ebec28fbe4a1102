"""The library that makes tritonserver patient with a member that stands still: see `patience.c`. Compiled once."""

import os
import shutil
import subprocess
import tempfile
import zlib
from pathlib import Path

PATIENCE_S = 2
"""On top of the second that Triton waits. More, and a member that is really lost would be told of later."""
_SOURCE = Path(__file__).with_name("patience.c")
_COMPILER_S = 60


def patience_library() -> Path | None:
    """The library, from the cache or made now; None where that cannot be, as without a C compiler."""
    from penstock.model_source import cache_directory

    key = zlib.crc32(_SOURCE.read_bytes() + bytes([PATIENCE_S]))
    library = cache_directory().absolute() / "patience" / f"libpenstock-patience-{key:08x}.so"
    if not library.is_file():
        try:
            _compile(library)
        except (OSError, subprocess.SubprocessError):
            return None
    return library


def _compile(library: Path) -> None:
    """Of two processes that do so at once the last wins."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise FileNotFoundError("cc")
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        made = Path(scratch) / library.name
        options = ["-O2", "-shared", "-fPIC", f"-DPATIENCE_S={PATIENCE_S}"]
        command = [compiler, *options, "-o", str(made), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True, timeout=_COMPILER_S)
        os.replace(made, library)
