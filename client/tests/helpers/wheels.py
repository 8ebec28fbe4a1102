"""Wheels, built from the repository without a network."""

import re
import shutil
import subprocess
import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src")
LIMIT_S = 300  # a busy machine


def checked(*command: str | Path, **options: object) -> str:
    """Standard output of a command that must end with status 0."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=LIMIT_S, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_wheel(project: Path, folder: Path, names: tuple[str, ...] = SOURCES) -> Path:
    """A wheel of these files below `project`, built in `folder`, which is empty.

    A build writes beside its sources, and the files of an earlier build would end up in the wheel.
    """
    source, out = folder / "source", folder / "wheel"
    source.mkdir()
    for name in names:
        if (project / name).is_file():
            shutil.copy(project / name, source / name)
        else:
            ignored = shutil.ignore_patterns("*.egg-info", "__pycache__")
            shutil.copytree(project / name, source / name, symlinks=True, ignore=ignored)
    checked(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source)
    (path,) = out.iterdir()
    return path


def file_named(archive: ZipFile, ending: str) -> bytes:
    (name,) = (name for name in archive.namelist() if name.endswith(ending))
    return archive.read(name)


def requirements(archive: ZipFile) -> dict[str, set[str]]:
    """Names of the packages that a wheel requires, by extra: "" for always."""
    metadata = message_from_bytes(file_named(archive, ".dist-info/METADATA"))
    found: dict[str, set[str]] = {extra: set() for extra in ("", *metadata.get_all("Provides-Extra", []))}
    for each in metadata.get_all("Requires-Dist", []):
        name, extra = re.match(r'([\w.-]+)(?:.*extra == "(.+)")?', each).groups("")
        found[extra].add(name)
    return found
