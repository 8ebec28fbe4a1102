"""The directory of a running server: its lock, its guard, and what dead servers have left."""

import os
import subprocess
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest

from penstock.serving import runtime_directory
from penstock.serving.runtime_directory import RuntimeDirectory


@pytest.fixture(autouse=True)
def shared_memory(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(runtime_directory, "SHARED_MEMORY", tmp_path)
    return tmp_path


def test_a_start_removes_what_dead_servers_have_left_and_nothing_else(shared_memory, monkeypatch):
    living, orphaned, dead = (RuntimeDirectory() for _ in range(3))
    regions = [runtime.path.with_name(f"{runtime.path.name}-region") for runtime in (living, orphaned, dead)]
    others = [shared_memory / "penstock-runtime-models", shared_memory / "penstock-runtime-12345678-lonely"]
    others[0].mkdir()
    for path in (*regions, others[1]):
        path.touch()
    with subprocess.Popen(["sleep", "600"], pass_fds=[orphaned.lock]) as survivor:  # a process of that server
        os.close(orphaned.lock)
        os.close(dead.lock)
        with monkeypatch.context() as other_user:
            other_user.setattr(os, "geteuid", lambda: os.getuid() + 1)
            RuntimeDirectory().remove()
        assert dead.path.exists()
        RuntimeDirectory().remove()
        assert all(path.exists() for path in (living.path, orphaned.path, *regions[:2], *others))
        assert not dead.path.exists() and not regions[2].exists()
        survivor.kill()


def test_servers_that_start_at_once_do_not_take_each_others_directories(shared_memory):
    def start(_: int) -> bool:
        runtime = RuntimeDirectory()
        is_there = runtime.path.exists()
        runtime.remove()
        return is_there

    with ThreadPool(8) as pool:
        assert all(pool.map(start, range(200)))
    assert not list(shared_memory.iterdir())


def test_a_killed_guard_is_replaced_by_one_that_does_its_work():
    runtime = RuntimeDirectory()
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as server:
        runtime.start_guard(server.pid)
        assert not list(runtime.check(server.pid))
        runtime._guard.kill()
        runtime._guard.wait()
        assert len([*runtime.check(server.pid), *runtime.check(server.pid)]) == 1
        runtime._guard.communicate()  # as at the end of this process
        assert server.wait(60) < 0 and not runtime.path.exists()
    runtime.remove()
