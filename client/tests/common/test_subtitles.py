import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_client import Word
from penstock_common.subtitles import MAX_CUE_MS, MAX_LINE_COLUMNS, MAX_LINES, MAX_PAUSE_MS, MIN_CUE_MS, cues, srt, vtt
from penstock_common.subtitles import SpokenPart as Part
from penstock_common.writing import cells, join_texts

DATA = Path(__file__).parent / "data"


def spoken(text, start_ms=0, word_ms=250, pause_ms=50):
    """Words of one length with pauses of one length."""
    step_ms = word_ms + pause_ms
    return [Word(t, start_ms + i * step_ms, start_ms + i * step_ms + word_ms) for i, t in enumerate(text.split())]


def shown(*segments, **options):
    """The cues of segments without speakers."""
    return cues(map(Part, segments), **options)


def texts(*segments):
    return [" ".join(cue.lines) for cue in shown(*segments)]


TALK = [
    spoken("a penstock carries water from a reservoir to a turbine and this line is the second one until it is full")
    + spoken("after a pause <b> & so on", start_ms=9_000),
    spoken("语音 识别", start_ms=11_200, word_ms=120),
    [],
    spoken("yes.", start_ms=3_599_900, word_ms=200) + spoken("no.", start_ms=3_600_150, word_ms=100),
]


@pytest.mark.parametrize("write", [srt, vtt])
def test_files_as_written_by_hand(write):
    assert write(shown(*TALK)) == (DATA / f"talk.{write.__name__}").read_text(encoding="utf-8")


def test_no_cue_outlives_its_audio():
    """A word's last frame, the hold and the shortest cue would; a word that begins behind the end keeps its cue."""
    parts = [Part([Word("one", 0, 250)]), Part([Word("two", 1_600, 1_960)], "A"), Part([Word("behind", 2_000, 2_080)])]
    times = [(cue.start_ms, cue.end_ms) for cue in cues(parts, end_s=1.9)]
    assert times == [(0, 1_000), (1_600, 1_900), (2_000, 2_001)]
    assert [cue.end_ms for cue in cues(parts)] == [1_000, 2_000, 3_000]


def test_no_words_are_an_empty_file():
    assert srt(shown()) == ""
    assert vtt(shown([], [])) == "WEBVTT\n"


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
    all_cues = shown(*drawn)
    words = [word for segment in drawn for word in segment]
    text = "".join(line for cue in all_cues for line in cue.lines)
    assert text.replace(" ", "") == "".join(word.text.replace("\n", "\ufffd") for word in words)
    assert all(0 <= cue.start_ms < cue.end_ms <= cue.start_ms + MAX_CUE_MS for cue in all_cues)
    assert all(len(cue.lines) <= MAX_LINES for cue in all_cues)
    long_lines = {line for cue in all_cues for line in cue.lines if cells(line) > MAX_LINE_COLUMNS}
    assert long_lines <= {word.text.replace("\n", "\ufffd") for word in words}
    assert all(earlier.end_ms <= later.start_ms for earlier, later in itertools.pairwise(all_cues))


@st.composite
def speech(draw):
    """Words of one speaker as they are spoken, with marks."""
    texts = st.sampled_from(["a", "so.", "Well,", "Mrs.", "Is", "5", "p.m.", "reservoirs", "No!", "hydroelectricity"])
    steps = draw(st.lists(st.tuples(texts, st.integers(40, 900), st.integers(0, 2_000)), min_size=1, max_size=60))
    starts_ms = itertools.accumulate((length_ms + gap_ms for _, length_ms, gap_ms in steps), initial=0)
    return [Word(text, at_ms, at_ms + length_ms) for (text, length_ms, _), at_ms in zip(steps, starts_ms, strict=False)]


def fits(words):
    """True for words that one cue may hold."""
    lines = [(words[:count], words[count:]) for count in range(1, len(words) + 1)]
    widths = [max(cells(join_texts(word.text for word in line)) for line in division) for division in lines]
    return min(widths) <= MAX_LINE_COLUMNS and words[-1].end_ms - words[0].start_ms <= MAX_CUE_MS


@settings(max_examples=100, deadline=None)
@given(speech())
def test_no_cue_is_short_that_could_be_joined(words):
    left, parts = list(words), []
    all_cues = shown(words)
    for cue in all_cues:
        parts.append([])
        while join_texts(word.text for word in parts[-1]) != join_texts(cue.lines):
            parts[-1].append(left.pop(0))
    assert not left
    starts_ms = [*(cue.start_ms for cue in all_cues), float("inf")]
    are_short = [after - before < MIN_CUE_MS for before, after in itertools.pairwise(starts_ms)]
    for place, (one, other) in enumerate(itertools.pairwise(parts)):
        is_apart = other[0].start_ms - one[-1].end_ms > MAX_PAUSE_MS
        assert is_apart or not any(are_short[place : place + 2]) or not fits(one + other)


def test_a_cue_ends_at_a_long_pause_or_with_its_speaker():
    pause = [Word("a", 0, 100), Word("b", 100 + MAX_PAUSE_MS, 1700), Word("c", 1701 + MAX_PAUSE_MS, 3300)]
    assert texts(pause) == ["a b", "c"]
    assert texts(spoken("a b"), spoken("c", start_ms=600)) == ["a b c"]
    two = [Part(spoken("a b"), "A"), Part(spoken("c", start_ms=600), "B"), Part(spoken("d", start_ms=900), "B")]
    assert [cue.lines for cue in cues(two)] == [("A: a b",), ("B: c d",)]


def test_short_sentences_share_a_cue_and_long_ones_are_divided_at_clauses():
    assert texts(spoken("So. Next one? Last")) == ["So. Next one? Last"]
    talk = "Mr. and Mrs. Jones met Prof. Lee at 5 p.m. on St. James St. yesterday. Well... I don't know."
    assert [cue.lines for cue in shown(spoken(talk, word_ms=150))] == [
        ("Mr. and Mrs. Jones met Prof. Lee at", "5 p.m. on St. James St. yesterday."),
        ("Well... I don't know.",),
    ]
    long = "Water falls from the reservoir down to the turbine, which turns the generator until the evening comes."
    assert [cue.lines for cue in shown(spoken(long, word_ms=150))] == [
        ("Water falls from the", "reservoir down to the turbine,"),
        ("which turns the generator", "until the evening comes."),
    ]
    assert texts(spoken("Yes.") + spoken("But why?", start_ms=1_001)) == ["Yes.", "But why?"]
    assert texts(spoken("Yes.") + spoken("No.", start_ms=999)) == ["Yes. No."]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "今 日 は GPU を " + "使 う " * 20 + "。",
            [("今日はGPUを" + "使う" * 3, "使う" * 6), ("使う" * 5 + "使", "う" + "使う" * 5 + "。")],
        ),
        ("สวั สดี ครั บ", [("สวัสดีครับ",)]),
        ("は い。 OK", [("はい。OK",)]),
        ("말 했다 」 3 月", [("말 했다」3月",)]),
    ],
)
def test_cues_of_scripts_without_spaces(text, lines):
    """At most 42 columns, of which a wide character takes two; only words of other scripts have blanks between them."""
    assert [cue.lines for cue in shown(spoken(text, word_ms=80, pause_ms=0))] == lines
    assert cues([Part(spoken("今 日"), "左")])[0].lines == ("左: 今日",)


def test_a_short_cue_is_extended_up_to_the_next():
    alone = shown(spoken("hm"))
    followed = cues([Part(spoken("hm"), "A"), Part(spoken("so", start_ms=700), "B")])
    assert [cue.end_ms for cue in alone] == [MIN_CUE_MS]
    assert [cue.end_ms for cue in followed] == [700, 700 + MIN_CUE_MS]
