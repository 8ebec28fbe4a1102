"""The directory of a running server, and the guard process that removes it if this process ends before the server."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import ServerError

SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "penstock-runtime-"
_START_S = 60.0
_GUARD_PAUSE_S = 10.0  # after a restart of the guard, which something may kill again and again

# The script's standard input closes when this process ends in any way, SIGKILL included.
_GUARD_SCRIPT = 'read -r _; kill -s KILL -- "-$1"; rm -rf -- "$2" "$2"-*'


class RuntimeDirectory:
    """A directory in shared memory, beside Triton's regions: these have its name and a suffix.

    Cleaners of old files leave shared memory alone, and it is never written to a disk. All processes of the server
    inherit a lock on the directory: without one it belongs to a dead server, and the next start removes it.
    """

    def __init__(self) -> None:
        """Makes it. OSError if that is impossible."""
        _remove_dead()
        made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=SHARED_MEMORY))
        try:
            self.lock = _lock(made, fcntl.LOCK_SH)
            self.path = made.rename(made.with_name(made.name[1:]))  # only now can another start find it
        except OSError:
            made.rmdir()
            raise
        self._guard: subprocess.Popen[bytes] | None = None
        self._guard_due_s = 0.0
        self._files: set[Path] = set()

    def start_guard(self, process_group: int) -> None:
        """Starts a shell that kills the group and removes all files when this process ends. OSError if it cannot.

        A death signal (prctl) would follow the thread, not the process, and would leave model processes and files.
        """
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD_SCRIPT, "sh", str(process_group), self.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            pass_fds=[self.lock],
        )

    def note_files(self) -> None:
        """Remembers the files of a server that is ready, for `check`. ServerError if they were removed meanwhile."""
        with contextlib.suppress(FileNotFoundError):
            self._files = {self.path, *self.path.iterdir()}  # Triton replaces its regions with each load
        if not os.fstat(self.lock).st_nlink:
            raise ServerError(f"the server did not start: {self.path} was removed meanwhile")

    def check(self, process_group: int) -> Iterator[str]:
        """Yields a warning when files have been removed, and when the guard has ended: another one is started."""
        if lost := {file for file in self._files if not file.exists()}:
            self._files -= lost
            yield f"{min(lost)} was removed; the server goes on without it"
        if self._guard and self._guard.poll() is not None and time.monotonic() >= self._guard_due_s:
            self._guard_due_s = time.monotonic() + _GUARD_PAUSE_S
            yield "the guard process has ended; another one is being started"
            with contextlib.suppress(OSError):  # tried again after the pause
                self.start_guard(process_group)

    def remove(self) -> None:
        """Removes it with Triton's regions, and ends the guard. The server must have ended."""
        _remove_files(self.path)
        os.close(self.lock)
        if self._guard is not None:
            with self._guard:
                self._guard.kill()


def _lock(directory: Path, kind: int) -> int:
    """The lock, held until all copies of this descriptor are closed. OSError if another lock forbids it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_dead() -> None:
    """Removes what this user's servers have left that were killed together with their guards, or as they started."""
    for directory in (*SHARED_MEMORY.glob(f"{_PREFIX}{'?' * 8}"), *SHARED_MEMORY.glob(f".{_PREFIX}{'?' * 8}")):
        with contextlib.suppress(OSError):
            found, is_named = directory.lstat(), directory.name.startswith(_PREFIX)  # else it may still lack its lock
            if found.st_uid == os.geteuid() and (is_named or time.time() - found.st_mtime > _START_S):
                lock = _lock(directory, fcntl.LOCK_EX)
                _remove_files(directory)
                os.close(lock)


def _remove_files(directory: Path) -> None:
    for region in SHARED_MEMORY.glob(f"{directory.name}-*"):
        with contextlib.suppress(OSError):
            region.unlink()
    shutil.rmtree(directory, ignore_errors=True)
