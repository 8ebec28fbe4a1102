"""The library that makes tritonserver patient with a member that stands still: see `patience.c`. Compiled once."""

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
import zlib
from pathlib import Path

PATIENCE_S = 2
"""On top of the second that Triton waits. More, and a member that is really lost would be told of later."""
PACKAGE = Path(__file__).absolute().parent
_SOURCE = PACKAGE / "patience.c"
_COMPILER_S = 60


def patience_library() -> Path | None:
    """The library: from the package, from the cache, or made there now.

    None where it cannot be made or loaded, as without a C compiler.
    """
    from penstock.model_source import cache_directory

    try:
        library = PACKAGE / library_name()
        if not library.is_file():
            library = cache_directory().absolute() / "patience" / library_name()
        if re.search(r"[\s:$]", str(library)):  # would be several in LD_PRELOAD
            return None
        if not library.is_file():
            make(library.parent)
        ctypes.CDLL(str(library))  # here it changes nothing; a folder whose files may not be executed is refused
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return None
    return library


def library_name() -> str:
    """Its own for each content."""
    key = zlib.crc32(_SOURCE.read_bytes() + bytes([PATIENCE_S]))
    return f"libpenstock-patience-{key:08x}.so"


def make(folder: Path) -> None:
    """Compiles it: in the package's folder when an image is built, since nothing can be where it runs.

    Of two processes that do so at once the last wins. Raises OSError or subprocess.SubprocessError.
    """
    library = folder / library_name()
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
