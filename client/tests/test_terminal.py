import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.tests.helpers.terminal import Terminal
from penstock_client.cli.output import LiveText
from penstock_common.writing import cells, printable, wrap

TEXTS = st.text(alphabet="ab \nü語🙂", max_size=120)


@settings(max_examples=50, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=5), columns=st.integers(3, 30))
def test_screen_shows_the_last_text_only(texts, columns):
    worn, fresh = Terminal(columns), Terminal(columns)
    for terminal in (worn, fresh):
        terminal.write("$ command\n")
    live = LiveText(worn, lambda: (columns, 1000))
    for text in texts:
        live.draw(text)
    LiveText(fresh, lambda: (columns, 1000)).draw(texts[-1])
    assert worn.screen == fresh.screen
    live.clear()
    worn.write("done\n")
    fresh_end = Terminal(columns)
    fresh_end.write("$ command\ndone\n")
    assert worn.screen == fresh_end.screen


@settings(max_examples=50, deadline=None)
@given(text=st.text(alphabet="abc ü語🙂", max_size=80), columns=st.integers(2, 20))
def test_wrapped_rows_fit_and_lose_only_blanks(text, columns):
    rows = wrap(text, columns)
    assert all(cells(row) <= columns for row in rows)
    assert "".join(rows).replace(" ", "") == text.replace(" ", "")


def test_rows_break_between_words():
    assert wrap("the quick brown fox", 10) == ["the quick", "brown fox"]
    assert wrap("a verylongword b", 6) == ["a", "verylo", "ngword", "b"]
    assert wrap("", 5) == [""]


@pytest.mark.parametrize("rows", [2, 5])
def test_a_text_higher_than_the_terminal_leaves_no_rows_above(rows):
    terminal = Terminal(12, rows)
    live = LiveText(terminal, lambda: (12, rows))
    for count in range(1, 40):
        live.draw(" ".join(f"word{i:04}" for i in range(count)))
    assert terminal.screen == [f"word{i:04}" for i in range(40 - rows, 39)]


def test_unchanged_text_is_not_drawn_again():
    terminal = Terminal(20)
    live = LiveText(terminal, lambda: (20, 24))
    live.draw("same")
    terminal.write = pytest.fail
    live.draw("same")


def test_a_narrower_terminal_is_erased_completely():
    terminal = Terminal(40)
    size = [40, 24]
    live = LiveText(terminal, lambda: tuple(size))
    live.draw("x" * 35)
    terminal.columns = size[0] = 10
    terminal.lines = [list("x" * 10), list("x" * 10), list("x" * 10), list("x" * 5)]  # as terminals reflow it
    terminal._row, terminal._column = 3, 5
    live.draw("y")
    assert terminal.screen == ["y"]


@pytest.mark.parametrize("text, width", [("abc", 3), ("語", 2), ("e\u0301", 1), ("🙂", 2), ("\u200b", 0), ("", 0)])
def test_cells(text, width):
    assert cells(text) == width


def test_server_text_cannot_control_the_terminal():
    assert printable("a\x1b[2Jb\r\n\x9bc é") == "a\ufffd[2Jb\ufffd\ufffd\ufffdc é"
