"""Wheels, built from the repository without a network."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile


@contextmanager
def built_wheel(project: Path, scratch: Path) -> Iterator[ZipFile]:
    """The wheel of the project in this folder.

    scratch: an empty folder. A build writes beside its sources, and the files of an earlier build would end up in the
    wheel.
    """
    source, out = scratch / "source", scratch / "dist"
    ignored = shutil.ignore_patterns("*.egg-info", "__pycache__")
    shutil.copytree(project / "src", source / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(project / name, source)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.iterdir()
    with ZipFile(path) as archive:
        yield archive


def file_named(archive: ZipFile, ending: str) -> bytes:
    (name,) = (name for name in archive.namelist() if name.endswith(ending))
    return archive.read(name)
