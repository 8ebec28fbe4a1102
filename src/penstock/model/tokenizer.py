"""Incremental detokenization: pieces may split words, and byte pieces characters, at any chunk border."""

import codecs
from functools import cached_property
from pathlib import Path

from penstock.errors import CheckpointError, naming
from penstock.model.vocabulary import read_vocabulary
from penstock_common.writing import SENTENCE_ENDS, is_mark, may_begin_word


def writes_sentences(characters: str) -> bool:
    """True if the characters can write sentences: both cases of letters, and the end of a sentence."""
    has_end = any(each in characters for each in SENTENCE_ENDS)
    return has_end and characters.lower() != characters != characters.upper()


class Tokenizer:
    """The labels of a model.

    Each id is either text (spaces as spaces), one byte of UTF-8, or nothing (control pieces).
    """

    def __init__(self, path: str | Path):
        """path: a bundle's `tokenizer.model`; CheckpointError if it is none."""
        try:
            with naming(path, CheckpointError):
                self.vocabulary = read_vocabulary(Path(path).read_bytes())
        except OSError as error:
            raise CheckpointError(f"{path}: not a SentencePiece model: {error.strerror}") from error
        self._pieces = self.vocabulary.texts
        self.size, self.unknown = len(self._pieces), self.vocabulary.unknown
        self.separator = self.vocabulary.separator

    @cached_property
    def has_punctuation_and_capitals(self) -> bool:
        """True if the pieces can write sentences."""
        return writes_sentences(
            "".join(piece for piece in self._pieces if isinstance(piece, str) and not piece.startswith("<"))
        )

    @cached_property
    def alphabet(self) -> frozenset[str]:
        """The characters that the pieces write. With byte pieces the model writes every other one, too."""
        text = "".join(piece for piece in self._pieces if isinstance(piece, str))
        return frozenset(each for each in set(text) if not each.isspace() and self.unknown not in self.encode(each))

    @cached_property
    def marks(self) -> frozenset[int]:
        """The pieces that are marks alone."""
        pieces = enumerate(self._pieces)
        return frozenset(index for index, piece in pieces if isinstance(piece, str) and is_mark(piece))

    @cached_property
    def writes_everything(self) -> bool:
        """True if bytes replace characters that no piece has."""
        return any(isinstance(piece, bytes) for piece in self._pieces)

    def piece(self, token: int) -> str | bytes:
        """Returns the text or the byte of token id 0 .. size - 1."""
        return self._pieces[token]

    def encode(self, text: str) -> list[int]:
        """Tokenizes `text`, in the first language that writes it; `unknown` replaces what the model cannot write."""
        encodings = self.encodings(text)
        return list(encodings[0]) if encodings else self.vocabulary.encoders[0](text)

    def encodings(self, text: str) -> list[tuple[int, ...]]:
        """Each language's tokens of `text` that are not empty and without `unknown`; one entry without languages."""
        found = (tuple(encode(text)) for encode in self.vocabulary.encoders)
        return [tokens for tokens in found if tokens and self.unknown not in tokens]

    def decode(self, tokens: list[int]) -> str:
        """Returns the text of a whole sequence."""
        text = IncrementalText(self)
        for token in tokens:
            text.add(token)
        text.finish()
        return text.text


class IncrementalText:
    """The text of a growing token sequence, without partial characters, blanks around it, and blanks before marks.

    Marks before its first word belong to what was before, so they are dropped, but for such as the one of "'em".
    """

    def __init__(self, tokenizer: Tokenizer, dropped: frozenset[int] = frozenset()):
        """dropped: tokens that are not in the text, and neither is the white space before them."""
        self.text = ""
        self._tokenizer, self._dropped = tokenizer, dropped
        self._gap = ""
        """Blanks behind the text, or marks before it, which are shown with the next word if at all."""
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def is_inside_character(self) -> bool:
        """True between two bytes of one character."""
        return bool(self._bytes.getstate()[0])

    def add(self, token: int, written: str | None = None) -> str:
        """Appends one token and returns the text it completes, "" while a character is unfinished.

        written: what the token stands for, in place of its piece.
        """
        if token in self._dropped:
            completed = self.finish()
            self._gap = ""
            return completed
        piece = self._tokenizer.piece(token) if written is None else written
        if isinstance(piece, bytes):
            return self._append(self._bytes.decode(piece))
        return self._append(self._bytes.decode(b"", final=True) + piece)

    def copy(self) -> "IncrementalText":
        """Returns an independent copy."""
        other = IncrementalText(self._tokenizer, self._dropped)
        other.text, other._gap = self.text, self._gap
        other._bytes.setstate(self._bytes.getstate())
        return other

    def finish(self) -> str:
        """Ends the sequence; an unfinished character becomes U+FFFD."""
        return self._append(self._bytes.decode(b"", final=True))

    def _append(self, new: str) -> str:
        if not new:
            return ""
        gap, self._gap = self._gap, ""
        if self.text:
            new = new.lstrip(" ") if is_mark(new) else gap + new
        elif is_mark(new):
            self._gap = gap + new.strip(" ") if may_begin_word(gap + new) else ""
            return ""
        else:
            new = new.lstrip(" ") if new[0] == " " else gap + new
        shown = new.rstrip(" ")
        self._gap = new[len(shown) :]
        self.text += shown
        return shown
