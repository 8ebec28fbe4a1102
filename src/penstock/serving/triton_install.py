"""Finds a tritonserver: the one in PENSTOCK_TRITONSERVER, one on PATH, or the one in the pip wheel nvidia-pytriton.

The wheel's server is assembled in a private directory, because its Python backend needs the stub of the running Python
beside it.
"""

import importlib.metadata
import os
import shutil
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import TritonInstallError

WHEEL = "nvidia-pytriton"
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_NEWEST_STUB = 13  # for Python 3.13
_STUB = "triton_python_backend_stub"
_BACKEND_FILES = ("libtriton_python.so", "triton_python_backend_utils.py")


@dataclass(frozen=True)
class TritonInstall:
    """A tritonserver that can be started."""

    executable: Path
    backend_directory: Path | None = None
    """None: the executable's default."""
    library_directories: tuple[Path, ...] = ()

    @property
    def is_wheel(self) -> bool:
        """True for the wheel's server, an old version that must not be open to a network (docs/serving.md)."""
        return self.backend_directory is not None


def find_triton(environment: Mapping[str, str] = os.environ) -> TritonInstall:
    """$PENSTOCK_TRITONSERVER, else tritonserver on PATH, else the wheel's; TritonInstallError names what to install."""
    if named := environment.get("PENSTOCK_TRITONSERVER"):
        path = shutil.which(named, path=environment.get("PATH"))
        if path is None:
            raise TritonInstallError(f"PENSTOCK_TRITONSERVER: {named} is not an executable file")
        return TritonInstall(Path(path).absolute())
    if path := shutil.which("tritonserver", path=environment.get("PATH")):
        return TritonInstall(Path(path).absolute())
    try:
        wheel = importlib.metadata.distribution(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        if _minor_version(_PYTHON) > _NEWEST_STUB:
            raise _unsupported_python(WHEEL, f"up to 3.{_NEWEST_STUB}") from None
        raise TritonInstallError(
            f"no tritonserver found: not on PATH, and the wheel {WHEEL} is not installed; "
            f"`pip install --no-deps '{WHEEL}>=0.7'` brings one (alone, as it declares numpy below 2), or set "
            "PENSTOCK_TRITONSERVER to the server's path"
        ) from None
    return _assemble(Path(str(wheel.locate_file(""))), wheel.version)


def _assemble(site_packages: Path, version: str) -> TritonInstall:
    """The wheel's server in a directory of the cache, which is created if it is missing."""
    from penstock.model.resolve import cache_directory

    server, libraries = site_packages / "pytriton" / "tritonserver", site_packages / "nvidia_pytriton.libs"
    files = {
        "bin/tritonserver": server / "bin" / "tritonserver",
        f"backends/python/{_STUB}": _stub(server, version),
        **{f"backends/python/{name}": server / "backends" / "python" / name for name in _BACKEND_FILES},
    }
    python_library = _python_library()
    # The stub of 3.13 wants the wheel's copy by its name, which does not fit the modules of another 3.13.
    copies = libraries.glob(f"libpython3-*.{_minor_version(_PYTHON)}.so*")
    files |= {f"lib/{name}": python_library for name in (python_library.name, *(path.name for path in copies))}
    key = zlib.crc32(os.fsencode("".join(map(str, files.values()))))
    folder = cache_directory().absolute() / "triton" / f"{version}-python{_PYTHON}-{key:08x}"
    if not _is_complete(folder, files):
        _make(folder, files)
    return TritonInstall(folder / "bin" / "tritonserver", folder / "backends", (folder / "lib", libraries))


def _minor_version(python: str) -> int:
    return int(python.partition(".")[2])


def _stub(server: Path, version: str) -> Path:
    """The stub for the running Python."""
    stub = server / "python_backend_stubs" / _PYTHON / _STUB
    if not stub.is_file():
        names = (path.parent.name for path in stub.parent.parent.glob(f"*/{_STUB}"))
        known = sorted(names, key=_minor_version)
        raise _unsupported_python(f"{WHEEL} {version}", ", ".join(known) or "none")
    return stub


def _unsupported_python(wheel: str, accepted: str) -> TritonInstallError:
    return TritonInstallError(
        f"the Triton server of {wheel} does not run models with Python {_PYTHON}; accepted: {accepted}. "
        "Use one of these, run the image (`docker compose up`), or set PENSTOCK_TRITONSERVER to another tritonserver"
    )


def _python_library() -> Path:
    """The running Python's own libpython for the stub, so that interpreter and standard library match."""
    name = f"libpython{_PYTHON}.so"
    own = sysconfig.get_config_var("INSTSONAME") or "none"
    folders = (sysconfig.get_config_var("LIBDIR") or "/", f"{sys.base_prefix}/lib")  # the second where it was moved
    for path in (Path(folder) / own for folder in folders):
        if path.is_file() and own.startswith(name):
            return path
    raise TritonInstallError(
        f"the Triton server's Python models need the shared library {name}, which {sys.executable} comes without; "
        f"install it (Debian and Ubuntu: libpython{_PYTHON}), or use a Python built with --enable-shared"
    )


def _is_complete(folder: Path, files: dict[str, Path]) -> bool:
    try:
        return all((folder / name).stat().st_size == original.stat().st_size for name, original in files.items())
    except OSError:
        return False


def _make(folder: Path, files: dict[str, Path]) -> None:
    """Creates `folder` with `files` (name in it -> original) atomically; the first of two processes wins."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as scratch:
            new = Path(scratch) / "new"
            for name, original in files.items():
                _place(original, new / name)
            if folder.exists():  # a part of it was deleted
                folder.rename(Path(scratch) / "old")
            _rename_unless_made(new, folder, files)
    except OSError as error:
        raise TritonInstallError(f"the Triton server cannot be assembled in {folder.parent}: {error}") from error


def _place(original: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.parent.name == "lib":  # large, and part of the running Python
        target.symlink_to(original)
        return
    shutil.copyfile(original, target)
    target.chmod(0o755)  # pip may have lost the executable bit


def _rename_unless_made(new: Path, folder: Path, files: dict[str, Path]) -> None:
    try:
        new.rename(folder)
    except OSError:
        if not _is_complete(folder, files):
            raise
