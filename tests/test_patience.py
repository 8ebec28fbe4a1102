"""The library that lets tritonserver wait longer: made once, and what it does to a wait."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import patience
from penstock.patience import PATIENCE_S, patience_library

WAIT_S = 0.2
WAITING = """
import ctypes, os, sys, threading, time
python, post_after_s, wait_s = sys.argv[1:]
libc, post_after_s, wait_s = ctypes.CDLL(None, use_errno=True), float(post_after_s), float(wait_s)
semaphore = ctypes.create_string_buffer(64)
libc.sem_init(semaphore, 0, 0)
if post_after_s:
    threading.Timer(post_after_s, libc.sem_post, (semaphore,)).start()
started = time.monotonic()
deadline = time.time() + wait_s
timespec = (ctypes.c_long * 2)(int(deadline), int(deadline % 1 * 1e9))
found = libc.sem_timedwait(semaphore, timespec)
print(found, time.monotonic() - started)
print(os.environ.get("LD_PRELOAD"))
print("patience" in open("/proc/self/maps").read())
os.execv(python, [python, "-c", "print('patience' in open('/proc/self/maps').read())"])
"""


@pytest.fixture
def cache(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.setattr(patience, "PACKAGE", tmp_path / "package")  # without a library
    return tmp_path


@pytest.fixture
def library(cache) -> Path:
    """Made in a cache of the test's own."""
    library = patience_library()
    if library is None:
        pytest.skip("needs a C compiler")
    return library


@pytest.fixture
def server(tmp_path) -> Path:
    """A program that is called as Triton's: the library leaves every other one's environment alone."""
    (tmp_path / "tritonserver").symlink_to(os.path.realpath(sys.executable))
    return tmp_path / "tritonserver"


def wait(program: Path | str, preload: str, wait_s: float = WAIT_S, post_after_s: float = 0) -> tuple[int, float, list]:
    """What sem_timedwait returns, after how many seconds, and what the process and one that it starts have loaded."""
    environment = os.environ | ({"LD_PRELOAD": preload} if preload else {})
    command = [str(program), "-c", WAITING, sys.executable, str(post_after_s), str(wait_s)]
    lines = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    found, seconds = lines[0].split()
    return int(found), float(seconds), lines[1:]


def test_it_is_made_once(cache, library, monkeypatch):
    assert library.parent.parent == cache
    assert [path.name for path in library.parent.iterdir()] == [library.name]
    made = library.stat()
    monkeypatch.setenv("PATH", "")
    assert patience_library() == library
    assert library.stat() == made


def test_without_a_compiler_there_is_none(cache, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert patience_library() is None


def test_that_of_the_package_needs_neither_compiler_nor_cache(library, monkeypatch, tmp_path):
    monkeypatch.setattr(patience, "PACKAGE", tmp_path / "package")
    patience.make(patience.PACKAGE)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    assert patience_library() == tmp_path / "package" / library.name


@pytest.mark.parametrize("body", ["exit 1", "exit 0"])
def test_with_a_compiler_that_makes_nothing_there_is_none(cache, monkeypatch, tmp_path, body):
    compiler = tmp_path / "bin" / "cc"
    compiler.parent.mkdir()
    compiler.write_text(f"#!/bin/sh\n{body}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(compiler.parent))
    assert patience_library() is None
    assert list((cache / "patience").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    assert patience_library() is None


@pytest.mark.parametrize("name", ["with space", "with:colon"])
def test_a_cache_that_would_be_several_libraries_is_no_error(monkeypatch, tmp_path, name):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / name))
    assert patience_library() is None


def test_what_cannot_be_loaded_is_not_used(library, monkeypatch, tmp_path):
    broken = tmp_path / "other" / "patience" / library.name
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"no library")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "other"))
    assert patience_library() is None


def test_a_wait_in_vain_goes_on_and_an_answer_ends_it(library, server):
    found, seconds, loaded = wait(server, str(library))
    assert found == -1
    assert seconds >= WAIT_S + PATIENCE_S
    assert loaded == ["None", "True", "False"]  # what the process starts has it no more
    assert wait(server, str(library), post_after_s=WAIT_S + 0.5)[0] == 0
    assert wait(server, "", post_after_s=WAIT_S + 0.5)[0] == -1


def test_it_goes_on_from_now_where_the_deadline_is_long_over(library, server):
    found, seconds, _ = wait(server, str(library), wait_s=-10)
    assert found == -1
    assert seconds >= PATIENCE_S


def test_libraries_of_the_users_own_stay(library, server, tmp_path):
    own, source = tmp_path / "libown.so", tmp_path / "own.c"
    source.write_text("int own;\n")
    compiler = shutil.which("cc") or shutil.which("gcc")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(own), str(source)], check=True)
    assert wait(server, f"{library}:{own}", post_after_s=0.1)[2][0] == str(own)


def test_a_program_that_starts_the_server_leaves_it_there(library):
    assert wait(sys.executable, str(library), post_after_s=0.1)[2] == [str(library), "True", "True"]


def test_another_patience_is_another_library(library, monkeypatch):
    monkeypatch.setattr(patience, "PATIENCE_S", PATIENCE_S + 1)
    assert patience_library() != library
