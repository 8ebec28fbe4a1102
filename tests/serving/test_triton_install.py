import importlib.metadata
import os
import stat
import sys
import sysconfig
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.serving import triton_install
from penstock.serving.triton_install import find_triton

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


class FakeDistribution:
    version = "9.9"

    def __init__(self, root: Path):
        self._root = root

    def locate_file(self, name: str) -> Path:
        return self._root / name


def make_wheel(root: Path, pythons: tuple[str, ...]) -> None:
    server = root / "pytriton" / "tritonserver"
    names = [f"python_backend_stubs/{python}/triton_python_backend_stub" for python in pythons]
    names += ["bin/tritonserver", "backends/python/libtriton_python.so"]
    names += ["backends/python/triton_python_backend_utils.py"]
    for name in names:
        (server / name).parent.mkdir(parents=True, exist_ok=True)
        (server / name).write_text(name)
        (server / name).chmod(0o644)
    (root / "nvidia_pytriton.libs").mkdir()


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Installs a fake wheel with stubs for the given Pythons."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))

    def install(*pythons: str) -> Path:
        root = tmp_path / "site-packages"
        make_wheel(root, pythons)
        monkeypatch.setattr(importlib.metadata, "distribution", lambda name: FakeDistribution(root))
        return root

    return install


def make_executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_server_on_path_goes_before_the_wheel(tmp_path, wheel):
    wheel(VERSION)
    executable = make_executable(tmp_path / "bin" / "tritonserver")
    install = find_triton({"PATH": str(executable.parent)})
    assert (install.executable, install.backend_directory, install.is_wheel) == (executable, None, False)


def test_a_named_server_goes_before_all(tmp_path):
    on_path = make_executable(tmp_path / "bin" / "tritonserver")
    named = make_executable(tmp_path / "other" / "my-tritonserver")
    found = find_triton({"PATH": str(on_path.parent), "PENSTOCK_TRITONSERVER": str(named)})
    assert found.executable == named
    with pytest.raises(PenstockError, match=r"PENSTOCK_TRITONSERVER: /nowhere/x is not an executable file"):
        find_triton({"PENSTOCK_TRITONSERVER": "/nowhere/x"})


def missing(name: str) -> None:
    raise importlib.metadata.PackageNotFoundError(name)


def test_neither_found_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(PenstockError, match=r"is not installed; `pip install --no-deps 'nvidia-pytriton\S+'`"):
        find_triton({"PATH": ""})


def test_the_wheels_server_is_assembled_once_with_this_pythons_stub(tmp_path, wheel):
    root = wheel("3.8", VERSION)
    install = find_triton({"PATH": ""})
    assert install.is_wheel
    assert install.executable.is_relative_to(tmp_path / "cache")
    assert os.access(install.executable, os.X_OK)
    stub = install.backend_directory / "python" / "triton_python_backend_stub"
    assert stub.read_text() == f"python_backend_stubs/{VERSION}/triton_python_backend_stub"
    assert stat.S_IMODE(stub.stat().st_mode) == 0o755
    assert install.library_directories[-1] == root / "nvidia_pytriton.libs"
    made = install.executable.stat().st_ino
    assert find_triton({"PATH": ""}) == install
    assert install.executable.stat().st_ino == made
    assert len(list((tmp_path / "cache" / "triton").iterdir())) == 1


def test_a_damaged_folder_is_made_anew(tmp_path, wheel):
    wheel(VERSION)
    install = find_triton({"PATH": ""})
    (install.backend_directory / "python" / "triton_python_backend_stub").unlink()
    assert find_triton({"PATH": ""}) == install
    assert (install.backend_directory / "python" / "triton_python_backend_stub").is_file()
    assert len(list((tmp_path / "cache" / "triton").iterdir())) == 1


def test_a_python_without_stub_is_named_with_those_that_have_one(wheel):
    wheel("3.8", "3.10", "3.9")
    with pytest.raises(
        PenstockError, match=rf"9\.9 does not run models with Python {VERSION}; accepted: 3.8, 3.9, 3.10\."
    ):
        find_triton({"PATH": ""})


def test_a_python_newer_than_every_stub_is_not_told_to_install_the_wheel(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    monkeypatch.setattr(triton_install, "_PYTHON", "3.14")
    with pytest.raises(PenstockError, match=r"Python 3\.14; accepted: up to 3\.13\. .*docker compose up.*TRITONSERVER"):
        find_triton({"PATH": ""})


def test_the_stub_finds_the_running_pythons_library_by_every_name(wheel):
    copy = f"libpython3-0abc.{VERSION.partition('.')[2]}.so.1.0"
    (wheel(VERSION) / "nvidia_pytriton.libs" / copy).write_text("of another release")
    folder = find_triton({"PATH": ""}).library_directories[0]
    (target,) = {path.resolve() for path in folder.iterdir()}
    assert {path.name for path in folder.iterdir()} == {copy, sysconfig.get_config_var("INSTSONAME")}
    assert target.is_relative_to(Path(sys.base_prefix).resolve()) or target.is_relative_to("/usr/lib")


def test_a_cache_that_cannot_be_written_is_named(tmp_path, wheel, monkeypatch):
    wheel(VERSION)
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    with pytest.raises(PenstockError, match=r"cannot be assembled in .*file/triton"):
        find_triton({"PATH": ""})


def test_a_python_without_shared_library_is_told_what_to_install(wheel, monkeypatch):
    wheel(VERSION)
    static = {"LIBDIR": "/usr/lib", "INSTSONAME": f"libpython{VERSION}.a"}
    monkeypatch.setattr(triton_install.sysconfig, "get_config_var", static.get)
    with pytest.raises(PenstockError, match=rf"shared library libpython{VERSION}\.so.*--enable-shared"):
        find_triton({"PATH": ""})
