"""The library that lets tritonserver wait longer: made once, and what it does to a wait."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import patience
from penstock.patience import PATIENCE_S, patience_library

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
WAIT_S = 0.2
WAITING = """
import ctypes, os, sys, threading, time
libc, post_after_s, wait_s = ctypes.CDLL(None, use_errno=True), float(sys.argv[1]), float(sys.argv[2])
semaphore = ctypes.create_string_buffer(64)
libc.sem_init(semaphore, 0, 0)
deadline = time.time() + wait_s
timespec = (ctypes.c_long * 2)(int(deadline), int(deadline % 1 * 1e9))
if post_after_s:
    threading.Timer(post_after_s, libc.sem_post, (semaphore,)).start()
started = time.monotonic()
found = libc.sem_timedwait(semaphore, timespec)
print(found, os.strerror(ctypes.get_errno()) if found else "", round(time.monotonic() - started, 3), sep=";")
print(os.environ.get("LD_PRELOAD"))
print("patience" in open("/proc/self/maps").read())
os.execvp(sys.executable, [sys.executable, "-c", "print('patience' in open('/proc/self/maps').read())"])
"""


@pytest.fixture
def cache(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    return tmp_path


def wait(library: Path | None, post_after_s: float, more: str = "") -> tuple[int, float, list[str]]:
    """What sem_timedwait returns, after how many seconds, and what the process and one that it starts have loaded."""
    environment = os.environ | ({"LD_PRELOAD": f"{library}{more}"} if library else {})
    command = [sys.executable, "-c", WAITING, str(post_after_s), str(WAIT_S)]
    lines = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    found, why, seconds = lines[0].split(";")
    assert (found == "0") is not bool(why)
    return int(found), float(seconds), lines[1:]


@needs_compiler
def test_it_is_made_once(cache, monkeypatch):
    library = patience_library()
    assert library.parent.parent == cache
    assert [path.name for path in library.parent.iterdir()] == [library.name]
    made = library.stat()
    monkeypatch.setenv("PATH", "")
    assert patience_library() == library
    assert library.stat() == made


def test_without_a_compiler_there_is_none(cache, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert patience_library() is None


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


@needs_compiler
def test_a_wait_in_vain_goes_on_and_an_answer_ends_it(cache):
    library = patience_library()
    found, seconds, loaded = wait(library, post_after_s=0)
    assert found == -1
    assert seconds > WAIT_S + PATIENCE_S - 0.05
    assert loaded == ["None", "True", "False"]  # what the process starts has it no more
    found, seconds, _ = wait(library, post_after_s=WAIT_S + 0.5)
    assert found == 0
    assert WAIT_S + 0.4 < seconds < WAIT_S + PATIENCE_S
    assert wait(None, post_after_s=0)[:2] == (-1, pytest.approx(WAIT_S, abs=0.2))


@needs_compiler
def test_libraries_of_the_users_own_stay(cache, tmp_path):
    own = tmp_path / "libown.so"
    source = tmp_path / "own.c"
    source.write_text("int own;\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(own), str(source)], check=True)
    assert wait(patience_library(), post_after_s=0.1, more=f":{own}")[2][0] == str(own)


@needs_compiler
def test_another_patience_is_another_library(cache, monkeypatch):
    first = patience_library()
    monkeypatch.setattr(patience, "PATIENCE_S", PATIENCE_S + 1)
    assert patience_library() != first
