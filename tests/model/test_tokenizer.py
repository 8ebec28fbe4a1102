"""Incremental text is SentencePiece's text of the whole, and never shows half a character.

Three differences are meant. Marks have no blank before them, and none are at the start. SentencePiece drops a space at
the start only when the first piece holds it as its own space mark; here no text starts with a space. And where bytes
are no UTF-8, it writes one U+FFFD a byte; here a cut-off character is one U+FFFD.
"""

import random
import re

import pytest
import sentencepiece

from penstock.errors import CheckpointError
from penstock.model.tokenizer import IncrementalText, Tokenizer

CASES = ["rnnt_hybrid", "rnnt_bytes"]
SAMPLES = ["héllo the größe", "日本 語", "🙂 one🙂🙂 two", "e\u0301 x", "ß"]


@pytest.fixture(params=CASES)
def path(request, golden_bundle):
    return golden_bundle(request.param).tokenizer_path


@pytest.fixture
def with_bytes(golden_bundle):
    return golden_bundle("rnnt_bytes").tokenizer_path


MARKS = {bytes([each]) for each in b"!\"#%&'*,-./:;?@\\_)]}"} | {"'"}


def library(path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def normal(text: str) -> str:
    return re.sub("\ufffd+", "\ufffd", text.strip(" "))


def random_ids(chance: random.Random, size: int) -> list[int]:
    return [chance.randrange(size) for _ in range(chance.randrange(15))]


def test_random_sequences_are_those_of_the_library(path):
    tokenizer, model, chance = Tokenizer(path), library(path), random.Random(0)
    for _ in range(2000):
        ids = [i for i in random_ids(chance, tokenizer.size) if tokenizer.piece(i) not in MARKS]
        assert normal(tokenizer.decode(ids)) == normal(model.decode(ids))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["Yes. It is", "no? Is it"], True),
        (["YES NO", "IT IS."], False),
        (["yes it's", "no it isn't"], False),
        (["Yes It Is", "No It"], False),
        (["<en-US> yes.", "no, it is."], False),
    ],
)
def test_a_vocabulary_of_sentences_has_capitals_and_punctuation(tmp_path, texts, expected):
    model = tmp_path / "tokenizer"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(model), vocab_size=40, hard_vocab_limit=False,
        user_defined_symbols=["<en-US>"], minloglevel=2,
    )  # fmt: skip
    assert Tokenizer(f"{model}.model").has_punctuation_and_capitals == expected


@pytest.mark.parametrize("text", SAMPLES)
def test_text_only_grows_by_whole_characters(with_bytes, text):
    incremental, shown = IncrementalText(Tokenizer(with_bytes)), [""]
    ids = library(with_bytes).encode(text)
    assert len(ids) > len(text)
    for token in ids:
        new = incremental.add(token)
        shown.append(incremental.text)
        assert shown[-1] == shown[-2] + new
    assert all(text.startswith(interim) for interim in shown)
    assert shown[-1] == text


@pytest.mark.parametrize("count", [1, 2])
def test_an_unfinished_character_shows_only_at_the_end(with_bytes, count):
    tokenizer = Tokenizer(with_bytes)
    euro = [library(with_bytes).piece_to_id(f"<0x{byte:02X}>") for byte in "€".encode()]
    text = IncrementalText(tokenizer)
    for token in euro[:count]:
        assert text.add(token) == ""
        assert text.is_inside_character
    assert text.finish() == "\ufffd"
    assert not text.is_inside_character


def test_no_text_starts_with_a_space(path):
    tokenizer, model = Tokenizer(path), library(path)
    space, letter = model.piece_to_id("▁"), model.piece_to_id("e")
    assert tokenizer.decode([space, space, letter]) == "e"
    assert tokenizer.decode([model.unk_id(), letter]) == "⁇ e"


@pytest.mark.parametrize("content", [None, b"", b"not a model"])
def test_a_file_that_is_no_model_is_named(tmp_path, content):
    path = tmp_path / "tokenizer.model"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.model: not a SentencePiece model"):
        Tokenizer(path)
