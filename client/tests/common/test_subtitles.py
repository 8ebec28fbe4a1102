import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_client import Word
from penstock_common.subtitles import (
    MAX_CUE_MS,
    MAX_LINE_COLUMNS,
    MAX_LINES,
    MAX_PAUSE_MS,
    MIN_CUE_MS,
    cues,
    sentences,
    srt,
    vtt,
)
from penstock_common.writing import cells

DATA = Path(__file__).parent / "data"


def spoken(text, start_ms=0, word_ms=250, pause_ms=50):
    """Words of one length with pauses of one length."""
    step_ms = word_ms + pause_ms
    return [Word(t, start_ms + i * step_ms, start_ms + i * step_ms + word_ms) for i, t in enumerate(text.split())]


TALK = [
    spoken("a penstock carries water from a reservoir to a turbine and this line is the second one until it is full")
    + spoken("after a pause <b> & so on", start_ms=9_000),
    spoken("语音 识别", start_ms=11_200, word_ms=120),
    [],
    spoken("yes.", start_ms=3_599_900, word_ms=200) + spoken("no.", start_ms=3_600_150, word_ms=100),
]


@pytest.mark.parametrize("write", [srt, vtt])
def test_files_as_written_by_hand(write):
    assert write(cues(TALK)) == (DATA / f"talk.{write.__name__}").read_text(encoding="utf-8")


def test_no_cue_outlives_its_audio():
    """A word's last frame, the hold and the shortest cue would; a word that begins behind the end keeps its cue."""
    words = [spoken("one two")[:1], [Word("two", 1_600, 1_960)], [Word("behind", 2_000, 2_080)]]
    assert [(cue.start_ms, cue.end_ms) for cue in cues(words, end_s=1.9)] == [
        (0, 1_000),
        (1_600, 1_900),
        (2_000, 2_001),
    ]
    assert [cue.end_ms for cue in cues(words)] == [1_000, 2_000, 3_000]


def test_no_words_are_an_empty_file():
    assert srt(cues([])) == ""
    assert vtt(cues([[], []])) == "WEBVTT\n"


@st.composite
def segments(draw):
    """Words with times as a server may send them, also out of order or of length 0."""
    texts = st.text(st.sampled_from("aé語.?\n<&"), min_size=1, max_size=60)
    steps_ms = st.integers(-400, 4000)
    start_ms = 0
    drawn = []
    for lengths_ms in draw(st.lists(st.lists(st.integers(0, 9000), max_size=12), max_size=4)):
        words = []
        for length_ms in lengths_ms:
            start_ms = max(0, start_ms + draw(steps_ms))
            words.append(Word(draw(texts), start_ms, start_ms + length_ms))
            start_ms += length_ms
        drawn.append(words)
    return drawn


@settings(max_examples=60, deadline=None)
@given(segments())
def test_every_word_once_in_cues_that_do_not_overlap(drawn):
    all_cues = cues(drawn)
    words = [word for segment in drawn for word in segment]
    shown = "".join(line for cue in all_cues for line in cue.lines)
    assert shown.replace(" ", "") == "".join(word.text.replace("\n", "\ufffd") for word in words)
    assert all(0 <= cue.start_ms < cue.end_ms for cue in all_cues)
    assert all(earlier.end_ms <= later.start_ms for earlier, later in itertools.pairwise(all_cues))


@settings(max_examples=60, deadline=None)
@given(segments())
def test_cues_keep_the_limits_except_for_single_words(drawn):
    words = {word.text.replace("\n", "\ufffd") for segment in drawn for word in segment}
    for cue in cues(drawn):
        is_word = "".join(cue.lines) in words
        assert is_word or (len(cue.lines) <= MAX_LINES and cue.end_ms - cue.start_ms <= MAX_CUE_MS)
        for line in cue.lines:
            assert cells(line) <= MAX_LINE_COLUMNS or line in words


def test_a_cue_ends_at_a_pause_a_sentence_or_a_segment():
    def texts(*segments):
        return [" ".join(cue.lines) for cue in cues(segments)]

    pause = [Word("a", 0, 100), Word("b", 100 + MAX_PAUSE_MS, 1700), Word("c", 1701 + MAX_PAUSE_MS, 3300)]
    assert texts(pause) == ["a b", "c"]
    assert texts(spoken("so. next one? last")) == ["so.", "next one?", "last"]
    assert texts(spoken("a b"), spoken("c", start_ms=600)) == ["a b", "c"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "今 日 は GPU を " + "使 う " * 20 + "。",
            [("今日はGPUを" + "使う" * 7 + "使", "う" + "使う" * 10), ("使う" * 2 + "。",)],
        ),
        ("สวั สดี ครั บ", [("สวัสดีครับ",)]),
        ("は い。 OK", [("はい。",), ("OK",)]),
        ("말 했다 」 3 月", [("말 했다」3月",)]),
    ],
)
def test_cues_of_scripts_without_spaces(text, lines):
    """At most 42 columns, of which a wide character takes two; only words of other scripts have blanks between them."""
    assert [cue.lines for cue in cues([spoken(text, word_ms=80, pause_ms=0)])] == lines
    assert cues([spoken("今 日")], "左")[0].lines == ("左: 今日",)


def test_a_short_cue_is_extended_up_to_the_next():
    alone, followed = cues([spoken("hm")]), cues([spoken("hm"), spoken("so", start_ms=700)])
    assert [cue.end_ms for cue in alone] == [MIN_CUE_MS]
    assert [cue.end_ms for cue in followed] == [700, 700 + MIN_CUE_MS]


def test_sentences_keep_every_word_and_end_with_their_marks():
    words = [Word(text, 0, 1) for text in ["Is", "it", "3.5?", "Yes.", "Wait", "...", "す。」", "go", "on"]]
    assert [[word.text for word in part] for part in sentences(words)] == [
        ["Is", "it", "3.5?"], ["Yes."], ["Wait", "..."], ["す。」"], ["go", "on"]
    ]  # fmt: skip
    assert list(sentences([])) == []
