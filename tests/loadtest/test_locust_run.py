"""SIGTERM, Ctrl-C and the end of the server end the load generator too."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest import locust_run
from loadtest.locust_run import Target, Terminated, headless_report, terminated_as_interrupt
from penstock.errors import PenstockError

CHILD = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def end(number, frame):
    (folder / "ended").write_text(signal.Signals(number).name)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
(folder / "starting").write_text(str(os.getpid()))
(folder / "starting").rename(folder / "ready")
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def ctrl_c_interrupts() -> Iterator[None]:
    """Also where the tests run in the background of a shell, which then lets them ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def child(monkeypatch, tmp_path) -> Path:
    """Instead of Locust: says in this folder that it is `ready`, and by which signal it has `ended`."""
    real = subprocess.Popen

    def start(command: list[str], cwd: Path) -> subprocess.Popen:
        return real([sys.executable, "-c", CHILD, str(tmp_path)])

    monkeypatch.setattr(locust_run.subprocess, "Popen", start)
    return tmp_path


def send_when_ready(folder: Path, number: signal.Signals) -> None:
    """To this process, and to the child too where a terminal would send it to both."""

    def send() -> None:
        deadline_s = time.monotonic() + 20
        while not (folder / "ready").exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        if not (folder / "ready").exists():
            return
        os.kill(os.getpid(), number)
        if number == signal.SIGINT:
            time.sleep(0.2)
            os.kill(int((folder / "ready").read_text()), number)

    threading.Thread(target=send, daemon=True).start()


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_ends_the_load_generator_too(number, raised, child):
    """SIGTERM is handed on; Ctrl-C, which the terminal sends to both, is waited for."""
    send_when_ready(child, number)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt) as caught, terminated_as_interrupt():
        headless_report(Target("localhost:1"), 1, child / "out", [])
    assert caught.type is raised
    assert (child / "ended").read_text() == number.name
    assert signal.getsignal(signal.SIGTERM) is before


def test_no_report_is_no_result(monkeypatch, tmp_path):
    monkeypatch.setattr(locust_run, "run_locust", lambda *_: 3)
    with pytest.raises(PenstockError, match=r"wrote no report .*status 3"):
        headless_report(Target("localhost:1"), 1, tmp_path, [])
