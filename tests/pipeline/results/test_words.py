"""Words and their times from tokens that come in pieces."""

import math
import random

import pytest

from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.results.words import SegmentTranscript, Token, Word, word_confidence
from penstock_common.writing import split_words

FRAME_MS = 80.0


class Pieces:
    """A tokenizer of given pieces; a token's id is its place among them."""

    separator: int | None = None

    def __init__(self, *pieces: str | bytes):
        self._pieces = pieces

    def piece(self, token: int) -> str | bytes:
        return self._pieces[token]


def tokens_at(*timestamps: int, duration: int = 0) -> list[Token]:
    return [Token(i, timestamp, duration, -1.0) for i, timestamp in enumerate(timestamps)]


def words_of(pieces: list[str | bytes], *timestamps: int, duration: int = 0) -> list[tuple[str, int, int]]:
    """Words with their first frame and the frame after them."""
    transcript = SegmentTranscript(Pieces(*pieces), FRAME_MS)
    words = transcript.add(tokens_at(*timestamps, duration=duration)) + transcript.finish()
    return [(text, start // 80, end // 80) for text, start, end, _ in words]


@pytest.mark.parametrize(
    ("pieces", "timestamps", "expected"),
    [
        ([" he", "llo", " you"], (3, 4, 9), [("hello", 3, 5), ("you", 9, 10)]),
        (["he", "llo"], (0, 0), [("hello", 0, 1)]),
        ([" ", "a", " ", "b"], (1, 2, 5, 6), [("a", 1, 3), ("b", 5, 7)]),
        ([" a", "'s", " b-", "c"], (1, 2, 3, 4), [("a's", 1, 3), ("b-c", 3, 5)]),
        ([b"\xe2", b"\x82", b"\xac", "s"], (4, 5, 6, 7), [("€s", 4, 8)]),
        ([" a", b"\xe2", " b"], (1, 2, 3), [("a\ufffd", 1, 3), ("b", 3, 4)]),
        ([" a", b" ", "b"], (1, 2, 3), [("a", 1, 2), ("b", 3, 4)]),
        (["x", " ⁇ ", "y"], (1, 2, 3), [("x", 1, 2), ("⁇", 2, 3), ("y", 3, 4)]),
        ([" a b", "c"], (1, 2), [("a", 1, 2), ("bc", 1, 3)]),
        ([b"\xe2"], (5,), [("\ufffd", 5, 6)]),
        ([" ", ""], (1, 2), []),
        ([], (), []),
    ],
)
def test_words(pieces, timestamps, expected):
    assert words_of(pieces, *timestamps) == expected


def test_the_label_between_words_is_in_no_word():
    pieces = Pieces("a", " ", "b")
    pieces.separator = 1
    transcript = SegmentTranscript(pieces, FRAME_MS)
    words = transcript.add(tokens_at(2, 3, 40)) + transcript.finish()
    assert [(word.text, word.start_ms, word.end_ms) for word in words] == [("a", 160, 240), ("b", 3200, 3280)]


def test_a_word_ends_with_the_duration_of_its_last_token():
    assert words_of([" a", "b", " c"], 1, 3, 9, duration=4) == [("ab", 1, 7), ("c", 9, 13)]


@pytest.mark.parametrize(
    ("pieces", "text", "expected"),
    [
        (" the| ca|st| ?| Four", "the cast? Four", [("the", 0, 1), ("cast?", 1, 3), ("Four", 4, 5)]),
        (" cast| |?| |Four", "cast? Four", [("cast?", 0, 1), ("Four", 3, 5)]),
        (" cast|...|\"| so", 'cast..." so', [('cast..."', 0, 1), ("so", 3, 4)]),
        (" U|.|S|.", "U.S.", [("U.S.", 0, 3)]),
        ("?| Four", "Four", [("Four", 1, 2)]),
        ("。| ?|」", "", []),
        (" '|em| '", "'em'", [("'em'", 1, 2)]),
        (" -", "", []),
        (" ¿|qué|?| (|sí|)", "¿qué? (sí)", [("¿qué?", 0, 2), ("(sí)", 3, 5)]),
        (
            "。|今|日|は|、| 3|月|。",
            "今日は、 3月。",
            [("今", 1, 2), ("日", 2, 3), ("は、", 3, 4), ("3", 5, 6), ("月。", 6, 7)],
        ),
        (" GPU| を|使う", "GPU を使う", [("GPU", 0, 1), ("を", 1, 2), ("使", 2, 3), ("う", 2, 3)]),
        ("「|使う|」|GPU", "「使う」GPU", [("「使", 0, 2), ("う」", 1, 2), ("GPU", 3, 4)]),
        ("ก|ำ|ล|ั|ง| ไ|ป", "กำลัง ไป", [("กำ", 0, 2), ("ลั", 2, 4), ("ง", 4, 5), ("ไ", 5, 6), ("ป", 6, 7)]),
        (" 안녕|하세요| 네|.", "안녕하세요 네.", [("안녕하세요", 0, 2), ("네.", 2, 3)]),
    ],
)  # fmt: skip
def test_marks_and_scripts_without_spaces(pieces, text, expected):
    """A mark stands at the word before and takes no time; one without a word before is dropped."""
    tokens = tokens_at(*range(len(pieces := pieces.split("|"))), duration=1)
    assert words_of(pieces, *range(len(pieces)), duration=1) == expected
    for count in range(len(tokens)):
        transcript = SegmentTranscript(Pieces(*pieces), FRAME_MS)
        transcript.add(tokens[:count])
        assert transcript.text_with(tokens[count:]) == transcript.ending_with(tokens[count:]).text == text
        assert text.startswith(transcript.text)


def test_a_character_of_bytes_is_a_word():
    written = [bytes([byte]) for byte in "今日。".encode()]
    assert words_of(written, *range(9)) == [("今", 0, 3), ("日。", 3, 6)]


def test_a_word_is_finished_by_the_next_one_or_by_the_end():
    transcript = SegmentTranscript(Pieces(" he", "llo", " you"), FRAME_MS)
    first, second, third = tokens_at(1, 2, 5)
    assert transcript.add([first]) == []
    assert transcript.add([second]) == []
    assert transcript.text == "hello"
    assert transcript.add([third]) == [Word("hello", 80, 240, math.exp(-1))]
    assert transcript.text == "hello you"
    assert transcript.finish() == [Word("you", 400, 480, math.exp(-1))]


@pytest.mark.parametrize(
    ("pieces", "scores", "words"),
    [
        ([" a", b"\xc3", b"\xa9"], (-0.1, -3.0, -0.2), [("aé", -3.0)]),
        ([b"\xe2", b"\x82", b"\xac", "s"], (-1.0, -2.0, -0.1, -0.1), [("€s", -2.0)]),
        ([" a", b"\xc3", " b"], (-0.1, -2.0, -4.0), [("a\ufffd", -2.0), ("b", -4.0)]),
        ([" a", b"\xc3", "<de-DE>"], (-0.1, -2.0, -4.0), [("a\ufffd", -2.0)]),
        ([b"\xc3", b"\xc3", b"\xa9"], (-1.0, -2.0, -3.0), [("\ufffdé", -3.0)]),
        ([b"\xe2"], (-2.0,), [("\ufffd", -2.0)]),
        ([" a", b"\xe3", b"\x80", b"\x80", "b"], (-0.1, -2.0, -3.0, -4.0, -0.5), [("a", -0.1), ("b", -0.5)]),
    ],
)
def test_a_word_is_as_sure_as_all_bytes_of_its_characters(pieces, scores, words):
    tokens = [Token(i, i, 1, score) for i, score in enumerate(scores)]
    tags = frozenset(i for i, piece in enumerate(pieces) if piece == "<de-DE>")
    for heard in range(len(tokens) + 1):
        transcript = SegmentTranscript(Pieces(*pieces), FRAME_MS, dropped=tags)
        transcript.add(tokens[:heard])
        ending = transcript.ending_with(tokens[heard:])
        assert [(word.text, word.confidence) for word in ending.words] == [(text, math.exp(low)) for text, low in words]
        transcript.add(tokens[heard:])
        transcript.finish()
        assert transcript.words == ending.words


@pytest.mark.parametrize("heard", range(6))
def test_an_ending_has_the_words_of_the_whole(heard):
    pieces = Pieces(" he", "llo", " new", " wor", "ld")
    tokens = [Token(i, 2 * i, 1, -0.1 * i) for i in range(5)]
    transcript, whole = SegmentTranscript(pieces, FRAME_MS), SegmentTranscript(pieces, FRAME_MS)
    expected = whole.add(tokens) + whole.finish()
    transcript.add(tokens[:heard])
    before = (transcript.text, list(transcript.words))
    ending = transcript.ending_with(tokens[heard:])
    assert (ending.text, ending.words) == ("hello new world", expected)
    assert (transcript.text, transcript.words) == before, "the transcript goes on as if it had not been read"
    assert transcript.add(tokens[heard:]) + transcript.finish() == expected[len(before[1]) :]


@pytest.mark.parametrize("case", ["rnnt_hybrid", "rnnt_bytes"])
def test_random_tokens_in_random_pieces(golden_bundle, case):
    """Words are those of the text, in order, within the stream, however the tokens are grouped."""
    tokenizer, chance = Tokenizer(golden_bundle(case).tokenizer_path), random.Random(0)
    for _ in range(200):
        frames = sorted(chance.randrange(100) for _ in range(chance.randrange(20)))
        tokens = [Token(chance.randrange(tokenizer.size), frame, 0, -1.0) for frame in frames]
        whole = SegmentTranscript(tokenizer, FRAME_MS)
        words = whole.add(tokens) + whole.finish()
        assert whole.text == tokenizer.decode([token.id for token in tokens])
        assert [word.text for word in words] == [part for part in split_words(whole.text) if part]
        assert [word.start_ms for word in words] == sorted(word.start_ms for word in words)
        assert all(0 <= word.start_ms < word.end_ms <= 8000 for word in words)
        assert in_pieces(SegmentTranscript(tokenizer, FRAME_MS), tokens, chance) == words


def in_pieces(transcript: SegmentTranscript, tokens: list[Token], chance: random.Random) -> list[Word]:
    words, before = [], ""
    while tokens:
        count = chance.randint(0, 3)
        words += transcript.add(tokens[:count])
        tokens = tokens[count:]
        assert transcript.text.startswith(before)
        before = transcript.text
    return words + transcript.finish()


@pytest.mark.parametrize(
    ("pieces", "text", "words"),
    [
        ([" hello", ".", " ", "<de-DE>", " you"], "hello. you", ["hello.", "you"]),
        ([" hello.", "<de-DE>", " you"], "hello. you", ["hello.", "you"]),
        ([" hello.", " ", "<de-DE>", "<en-US>", " "], "hello.", ["hello."]),
        (["<de-DE>", " hello"], "hello", ["hello"]),
        ([" a", "<de-DE>", "b"], "ab", ["ab"]),
        ([" a", b"\xc3", "<de-DE>", " b"], "a\ufffd b", ["a\ufffd", "b"]),
    ],
)
def test_language_tags_and_the_space_before_them_are_dropped(pieces, text, words):
    tags = frozenset(i for i, piece in enumerate(pieces) if str(piece).startswith("<"))
    tokens = tokens_at(*range(len(pieces)))
    transcript = SegmentTranscript(Pieces(*pieces), FRAME_MS, dropped=tags)
    found = [word for token in tokens for word in transcript.add([token])] + transcript.finish()
    assert (transcript.text, [word.text for word in found]) == (text, words)
    for count in range(len(pieces)):
        begun = SegmentTranscript(Pieces(*pieces), FRAME_MS, dropped=tags)
        begun.add(tokens[:count])
        assert begun.ending_with(tokens[count:]).text == text
        assert "<" not in begun.text_with(tokens[count:])


def test_a_tag_changes_no_times_and_no_confidence_of_words():
    with_tag = SegmentTranscript(Pieces(" a", "<de-DE>", " b"), FRAME_MS, dropped=frozenset({1}))
    plain = SegmentTranscript(Pieces(" a", "", " b"), FRAME_MS)
    tokens = [Token(0, 3, 0, -1.0), Token(1, 5, 0, -9.0), Token(2, 8, 0, -2.0)]
    for transcript, some in ((with_tag, tokens), (plain, [tokens[0], tokens[2]])):
        transcript.add(some)
        transcript.finish()
    assert with_tag.words == plain.words


def test_a_log_probability_rounded_above_0_is_certain():
    assert word_confidence([1e-7]) == 1.0


def test_a_word_has_tokens():
    with pytest.raises(ValueError, match="without tokens"):
        word_confidence([])
