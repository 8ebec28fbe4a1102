"""The progress line: what it says, and that it is only on a terminal."""

import io

import pytest

from penstock.transcription.progress import Progress, duration


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
        progress.add_item()
    assert lines(out) == [
        "[70,6]: 0 of 2 files, 1:40 of 10:00, 50.0 x real time, 0:10 left",
        "[70,6]: 1 of 2 files, 1:40 of 10:00, 33.3 x real time, 0:15 left",
        "",
    ]
    assert "\n" not in out.getvalue()


def test_without_a_known_length_there_is_no_time_left():
    out, clock = Terminal(), Clock()
    progress = Progress(out, 1, 0.0, clock=clock)
    clock.now_s = 2.0
    progress.add_audio(100.0)
    assert lines(out) == ["0 of 1 files, 1:40, 50.0 x real time"]


def test_it_is_not_rewritten_more_often_than_one_can_read():
    out, clock = Terminal(), Clock()
    progress = Progress(out, 1, 600.0, clock=clock)
    for _ in range(1000):
        clock.now_s += 0.001
        progress.add_audio(0.1)
    assert 4 <= len(lines(out)) <= 6


def test_it_returns_after_something_else_was_written():
    out, clock = Terminal(), Clock()
    progress = Progress(out, 3, 0.0, clock=clock)
    assert list(progress.count("ab")) == ["a", "b"]
    progress.clear()
    progress.clear()
    out.write("text\n")
    progress.add_item()
    assert lines(out) == ["1 of 3 files, 0:00", "text\n", "3 of 3 files, 0:00"]


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
    progress.add_item()
    clock.now_s = 3.0
    assert progress.summary() == "1 file, 1:30 of audio in 0:03, 30.0 x real time"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3750, "1:02:30")])
def test_duration(seconds, text):
    assert duration(seconds) == text
