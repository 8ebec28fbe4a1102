"""Reads plain text, one sentence per line, as sentences of a recognizer's labels, or of words."""

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from penstock.errors import CheckpointError, CorpusError
from penstock.model.languages import without_tags
from penstock.model.tokenizer import Tokenizer
from penstock.scoring.ngram.arpa import BEGIN, END, UNKNOWN
from penstock.scoring.ngram.io import TokenNames, read_token_names

STANDARD_INPUT = "-"
MAX_LINE_BYTES = 16 << 20
"""The longest sentence: a file without line ends is no text, and would fill the memory."""
_UNKNOWN_LABEL = 0


class TextTokenizer:
    """Encodes text as the recognizer's training did, and counts sentences and tokens."""

    def __init__(self, tokenizer_path: str | Path, textless: Sequence[int] = ()):
        """textless: labels that are language tags or end tokens; where there are any, the text's are left out.

        CheckpointError for a model with several tokenizers.
        """
        self._tokenizer = tokenizer = Tokenizer(tokenizer_path)
        if languages := tokenizer.vocabulary.languages:
            raise CheckpointError(
                f"{tokenizer_path}: has a tokenizer per language ({', '.join(languages)}), and which one a text needs "
                "is not known; accepted: models with one tokenizer, or an ARPA file of this model's tokens"
            )
        self.names = read_token_names(tokenizer_path, textless)
        self._has_textless = bool(textless)
        self.sentences = 0
        self.tokens = 0
        self.unknown_tokens = 0
        """Unknown tokens, for characters that the tokenizer lacks; without such a token the characters are left out."""
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """SHA-256 of all bytes read so far, as hex digits."""
        return self._digest.hexdigest()

    def read(self, sources: Sequence[str]) -> Iterator[list[int]]:
        """The labels of every line of the files `sources` (`-`: standard input) that is not blank.

        A file that cannot be read, and bytes that are not UTF-8, raise CorpusError naming file and line.
        """
        for source in sources:
            for line in read_lines(source, self._digest.update):
                text = without_tags(line) if self._has_textless else line
                labels, unknown = self._tokenizer.encode(text), self._tokenizer.unknown
                self.tokens += len(labels)
                self.unknown_tokens += labels.count(unknown)
                if labels := [label for label in labels if label >= 0]:
                    self.sentences += 1
                    yield labels


def read_lines(source: str, on_bytes: Callable[[bytes], None] | None = None) -> Iterator[str]:
    """The lines of a file (`-`: standard input) that are not blank, stripped; CorpusError names file and line.

    on_bytes: called with the bytes of each line.
    """
    name = "standard input" if source == STANDARD_INPUT else source
    try:
        if source == STANDARD_INPUT:
            yield from _decoded(name, sys.stdin.buffer, on_bytes)
        else:
            with Path(source).open("rb") as file:
                yield from _decoded(name, file, on_bytes)
    except OSError as error:
        raise CorpusError(f"{name}: {error.strerror or error}") from error


def _decoded(name: str, file: BinaryIO, on_bytes: Callable[[bytes], None] | None) -> Iterator[str]:
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=1):
        if len(line) == MAX_LINE_BYTES:
            raise CorpusError(f"{name}: line {number}: is longer than {MAX_LINE_BYTES >> 20} MiB: not a text file")
        if on_bytes is not None:
            on_bytes(line)
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            raise CorpusError(f"{name}: line {number}: not UTF-8: {error}") from error
        if "\0" in text:
            raise CorpusError(f"{name}: line {number}: contains a zero byte: not a text file")
        if text:
            yield text


class WordText:
    """Words separated by white space, as they stand; counts as in `TextTokenizer`."""

    def __init__(self, words: Sequence[str] | None = None):
        """words: of a finished model, whose label 0 is `<unk>`; others become `<unk>`. None collects the text's."""
        self._labels = {word: label for label, word in enumerate(words or [UNKNOWN])}
        self._is_open = words is None
        self.sentences = 0
        self.tokens = 0
        self.unknown_tokens = 0

    @property
    def names(self) -> TokenNames:
        """All words so far as the labels of a language model."""
        return TokenNames(tuple(self._labels), _UNKNOWN_LABEL)

    def read(self, sources: Sequence[str]) -> Iterator[list[int]]:
        """The labels of every line that is not blank; CorpusError as `TextTokenizer.read`, and for `<s>` or `</s>`."""
        for source in sources:
            for line in read_lines(source):
                labels = [self._label(word, source) for word in line.split()]
                self.sentences += 1
                self.tokens += len(labels)
                self.unknown_tokens += labels.count(_UNKNOWN_LABEL)
                yield labels

    def _label(self, word: str, source: str) -> int:
        if word in (BEGIN, END):
            raise CorpusError(f"{source}: contains {word}, the mark of a sentence's begin or end, as a word")
        if self._is_open:
            return self._labels.setdefault(word, len(self._labels))
        return self._labels.get(word, _UNKNOWN_LABEL)
