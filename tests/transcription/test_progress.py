"""The progress line: what it says, and that it is only on a terminal."""

import io

import pytest

from penstock.transcription.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def lines(out: io.StringIO) -> list[str]:
    return out.getvalue().split("\r\x1b[K")[1:]


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")


def test_one_line_is_rewritten_with_speed_and_time_left():
    out, clock = Terminal(), Clock()
    with Progress(out, 2, 600.0, label="[70,6]", clock=clock) as progress:
        clock.now_s = 2.0
        progress.add_audio(100.0)
        clock.now_s = 3.0
        next(progress.count([1]))
    assert lines(out) == [
        "[70,6]: 0 of 2 files, 1:40 of 10:00, 50.0 x real time, 0:10 left",
        "[70,6]: 1 of 2 files, 1:40 of 10:00, 33.3 x real time, 0:15 left",
        "",
    ]
    assert "\n" not in out.getvalue()


def test_nothing_is_shown_elsewhere(monkeypatch):
    out = io.StringIO()
    with Progress(out, 1, 1.0) as progress:
        progress.add_audio(1.0)
    monkeypatch.setenv("TERM", "dumb")
    dumb = Terminal()
    with Progress(dumb, 1, 1.0) as progress:
        progress.add_audio(1.0)
    assert (out.getvalue(), dumb.getvalue()) == ("", "")


def test_summary():
    clock = Clock()
    progress = Progress(io.StringIO(), 1, 90.0, clock=clock)
    progress.add_audio(90.0)
    next(progress.count([1]))
    clock.now_s = 3.0
    assert progress.summary() == "1 file, 1:30 of audio in 0:03, 30.0 x real time"
