"""Lines are noticed without waiting, and a terminal is left as it was."""

import contextlib
import os
import pty
import termios
import time

import pytest

from penstock_client.enter_key import EnterKey


@contextlib.contextmanager
def descriptors(make):
    ends = make()
    try:
        yield ends
    finally:
        for end in ends:
            with contextlib.suppress(OSError):
                os.close(end)


def shows_what_is_typed(descriptor: int) -> bool:
    return bool(termios.tcgetattr(descriptor)[3] & termios.ECHO)


def test_a_line_is_seen_once_and_nothing_is_waited_for():
    with descriptors(os.pipe) as (reader, writer), EnterKey(reader) as key:
        started_s = time.monotonic()
        assert not key.was_pressed()
        os.write(writer, b"words")
        assert not key.was_pressed()
        os.write(writer, b"\n\n")
        assert [key.was_pressed(), key.was_pressed()] == [True, False]
        assert time.monotonic() - started_s < 5


def test_the_end_of_the_input_is_no_line():
    with descriptors(os.pipe) as (reader, writer), EnterKey(reader) as key:
        os.write(writer, b"\n")
        os.close(writer)
        assert [key.was_pressed(), key.was_pressed()] == [True, False]


def test_a_terminal_shows_nothing_meanwhile_and_is_given_back():
    with descriptors(pty.openpty) as (ours, theirs):
        assert shows_what_is_typed(theirs)
        with pytest.raises(KeyboardInterrupt), EnterKey(theirs) as key:
            assert not shows_what_is_typed(theirs)
            os.write(ours, b"\n")
            deadline_s = time.monotonic() + 5
            while not key.was_pressed():
                assert time.monotonic() < deadline_s
            raise KeyboardInterrupt
        assert shows_what_is_typed(theirs)
