"""Reads and writes ARPA files, the text format of back-off n-gram models, as arrays.

Reads what KenLM, SRILM and IRSTLM write: fields separated by tabs or spaces, comments before the data, pruned models,
back-offs left out, base-10 logarithms. The file is read line by line; only the arrays stay in memory. Writes the form
of KenLM: tabs, seven digits, back-offs for all but the highest order.
"""

import bz2
import codecs
import gzip
import lzma
import math
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar

import numpy as np

from penstock.errors import LanguageModelError, OutputError, cut
from penstock.model.foreign import MAGICS

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
LOG10_ZERO = -100.0
"""The logarithm of zero, as in KenLM; lower values, minus infinity too, are raised to it."""
MAX_ORDER = 20
_COMPRESSED: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
_COUNT = re.compile(rb"ngram\s+(\d{1,3})\s*=\s*(\d{1,15})")
_SECTION = re.compile(rb"\\(\d{1,3})-grams:")
_ROWS_AT_ONCE = 1 << 16  # a section's arrays grow with what is read, not with what the header says
_MAX_LINE_BYTES = 1 << 20
MAX_OTHER_LINES, MAX_OTHER_BYTES = 100_000, 16 << 20
"""Limits beside the n-grams: comments, headings, empty lines. A small gzip file could hold any number."""
_MAX_NGRAM_BYTES = 4096
"""On average over the n-grams so far, with the blanks between their fields."""
_NOT_ARPA = {
    b"iARPA": "IRSTLM's intermediate format; `compile-lm --text=yes` makes an ARPA file of it",
    b"qARPA": "IRSTLM's quantised format, which is not supported",
    b"blmt": "IRSTLM's binary format; `compile-lm --text=yes` makes an ARPA file of it",
    **MAGICS,
    b"\x28\xb5\x2f\xfd": "compressed by Zstandard; unpack it (accepted: gzip, bzip2, xz)",
    b"mmap lm http://kheafield.com/code": "KenLM's binary format; expected the ARPA file that it was made from",
}
_TAR, _NGPU_LM = b"\0ustar", "a tar archive, as NeMo's NGPU-LM is; expected the ARPA file that it was made from"
_T = TypeVar("_T")


class ArpaError(LanguageModelError):
    """An ARPA file cannot be read; the text names the file, the line and the problem."""


class ArpaSection(NamedTuple):
    """All n-grams of one order, N of them."""

    words: np.ndarray
    """[N, order] int32, indices into `Arpa.words`."""
    log10_probabilities: np.ndarray
    """[N] float32, at least `LOG10_ZERO`."""
    log10_backoffs: np.ndarray
    """[N] float32; 0 where the file has none."""
    lines: np.ndarray
    """[N] int64: the line in the file, from 1."""


class Arpa(NamedTuple):
    """A back-off model: `sections[n - 1]` holds the n-grams of order n."""

    words: list[str]
    sections: list[ArpaSection]

    @property
    def order(self) -> int:
        """Length of the longest n-gram."""
        return len(self.sections)

    @property
    def counts(self) -> list[int]:
        """N-grams of each order."""
        return [len(section.words) for section in self.sections]


def read_arpa(path: str | Path) -> Arpa:
    """Reads a file, plain or compressed by gzip, bzip2 or xz. ArpaError names the file, and the line if known."""
    return _read_file(Path(path), _LineReader.read)


def check_arpa(path: Path) -> None:
    """ArpaError unless the file begins as an ARPA file does. Reads no n-grams, so it takes no time."""
    _read_file(path, _LineReader.read_header)


def read_words(path: Path) -> list[str]:
    """The words of an ARPA file. Reads its 1-grams and nothing after them; ArpaError as `read_arpa`."""
    return _read_file(path, _LineReader.read_words)


def write_arpa(arpa: Arpa, path: str | Path) -> None:
    """Writes UTF-8 text and replaces `path`. LanguageModelError names a word that the format cannot hold."""
    for word in arpa.words:
        if not word or len(word.encode("utf-8").split()) != 1 or word.encode("utf-8") != word.encode("utf-8").strip():
            raise LanguageModelError(f"the word {word!r} cannot be written to an ARPA file")
    try:
        with Path(path).open("w", encoding="utf-8", newline="\n") as file:
            file.write("\\data\\\n")
            for order, count in enumerate(arpa.counts, start=1):
                file.write(f"ngram {order}={count}\n")
            for order, section in enumerate(arpa.sections, start=1):
                file.write(f"\n\\{order}-grams:\n")
                _write_section(file, arpa.words, section, order == arpa.order)
            file.write("\n\\end\\\n")
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from error


def _write_section(file: TextIO, words: list[str], section: ArpaSection, is_highest: bool) -> None:
    for row, probability, backoff in zip(
        section.words.tolist(), section.log10_probabilities.tolist(), section.log10_backoffs.tolist(), strict=True
    ):
        line = f"{probability:.7g}\t{' '.join([words[word] for word in row])}"
        # Nothing follows </s>, so it has no back-off.
        file.write(f"{line}\n" if is_highest or words[row[-1]] == END else f"{line}\t{backoff:.7g}\n")


def check_sentence_marks(arpa: Arpa) -> None:
    """Raises ArpaError for a model without the marks of a sentence's begin and end."""
    for mark in (BEGIN, END):
        if mark not in arpa.words:
            raise ArpaError(f"{mark} is not among the 1-grams")


class _LineError(Exception):
    def __init__(self, line: int, message: str):
        super().__init__(message)
        self.line = line


@contextmanager
def _open(path: Path) -> Iterator[Iterator[bytes]]:
    """The lines of a file; an error in reading it becomes an ArpaError."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
            file.seek(0)
            unpack = next((each for magic, each in _COMPRESSED.items() if start.startswith(magic)), None)
            with unpack(file) if unpack else file as text:
                yield iter(partial(text.readline, _MAX_LINE_BYTES), b"")
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if not isinstance(error, OSError) or error.errno is None:
            raise ArpaError(f"{path}: the compressed data are broken: {error}") from error
        raise ArpaError(f"{path}: {error.strerror or error}") from error


class _LineReader:
    """One pass through the lines; `_line` is the number of the last line read."""

    def __init__(self, lines: Iterator[bytes]):
        self._lines = lines
        self._line = self._bytes = self._ngrams = 0
        """Read so far."""
        self._words: list[str] = []
        self._index: dict[bytes, int] = {}

    def read(self) -> Arpa:
        counts = self.read_header()
        sections = []
        for order, count in enumerate(counts, start=1):
            self._expect(rb"\%d-grams:" % order)
            sections.append(self._read_section(order, count, is_highest=order == len(counts)))
        self._expect(b"\\end\\")
        return Arpa(self._words, sections)

    def read_words(self) -> list[str]:
        """The words of the 1-grams."""
        counts = self.read_header()
        self._expect(rb"\1-grams:")
        self._read_section(1, counts[0], is_highest=len(counts) == 1)
        return self._words

    def _fail(self, message: str) -> _LineError:
        return _LineError(self._line, message)

    def _next(self) -> bytes | None:
        """The next line with its ends stripped, or None at the end of the file."""
        line = next(self._lines, None)
        if line is None:
            return None
        self._line += 1
        if len(line) >= _MAX_LINE_BYTES:
            raise self._fail("is longer than 1 MiB: not an ARPA file")
        self._bytes += len(line)
        if self._line > MAX_OTHER_LINES + self._ngrams:
            raise self._fail(f"{MAX_OTHER_LINES} lines before it are no n-grams: not an ARPA file")
        if self._bytes > MAX_OTHER_BYTES + _MAX_NGRAM_BYTES * self._ngrams:
            raise self._fail(f"{self._bytes} bytes for {self._ngrams} n-grams: not an ARPA file")
        if self._line == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        return line.strip()

    def _expect(self, wanted: bytes) -> None:
        while (line := self._next()) is not None:
            if line == wanted:
                return
            if line:
                raise self._fail(f"expected {_show(wanted)}, found {_show(line)}")
        raise self._fail(f"the file ends where {_show(wanted)} is expected")

    def _reject_other_format(self, line: bytes) -> None:
        found = next((what for magic, what in _NOT_ARPA.items() if line.startswith(magic)), None)
        if found or _TAR in line:
            raise self._fail(found or _NGPU_LM)

    def read_header(self) -> list[int]:
        """Anything may come before the data section, as the format's description has it."""
        is_first = True
        while (line := self._next()) != b"\\data\\":
            if line is None:
                raise self._fail("the file ends without \\data\\: not an ARPA file")
            if line and is_first:
                self._reject_other_format(line)
                is_first = False
            if _SECTION.fullmatch(line):
                raise self._fail(f"{_show(line)} comes before \\data\\")
        counts: list[int] = []
        while line := self._next():
            match = _COUNT.fullmatch(line)
            if not match:
                raise self._fail(f"expected `ngram ORDER=COUNT`, found {_show(line)}")
            if int(match[1]) != len(counts) + 1:
                raise self._fail(f"expected the count of order {len(counts) + 1}, found {_show(line)}")
            counts.append(int(match[2]))
        if not counts:
            raise self._fail("there are no n-gram counts after \\data\\")
        if len(counts) > MAX_ORDER:
            raise self._fail(f"order {len(counts)} is more than the {MAX_ORDER} supported")
        return counts

    def _read_section(self, order: int, count: int, is_highest: bool) -> ArpaSection:
        blocks = []
        for start in range(0, count, _ROWS_AT_ONCE):
            rows = min(_ROWS_AT_ONCE, count - start)
            block = ArpaSection(
                np.empty((rows, order), np.int32), np.empty(rows), np.empty(rows), np.empty(rows, np.int64)
            )
            for row in range(rows):
                fields = self._next_fields(order, count, start + row)
                block.lines[row] = self._line
                block.log10_probabilities[row] = self._probability(fields[0])
                block.words[row] = self._find_words(fields[1 : order + 1], order)
                block.log10_backoffs[row] = self._backoff(fields, order, is_highest)
            blocks.append(block)
        if not blocks:
            none = np.empty(0, np.float32)
            return ArpaSection(np.empty((0, order), np.int32), none, none, np.empty(0, np.int64))
        words, probabilities, backoffs, lines = map(np.concatenate, zip(*blocks, strict=True))
        return ArpaSection(words, probabilities.astype(np.float32), backoffs.astype(np.float32), lines)

    def _next_fields(self, order: int, count: int, row: int) -> list[bytes]:
        while (line := self._next()) is not None:
            if line:
                break
        if line is None or line == b"\\end\\" or _SECTION.fullmatch(line):
            raise self._fail(f"the header says {count} {order}-grams, found {row}")
        fields = line.split()
        if len(fields) not in (order + 1, order + 2):
            words = "1 word" if order == 1 else f"{order} words"
            raise self._fail(f"expected a probability, {words} and a back-off, found {_show(line)}")
        self._ngrams += 1
        return fields

    def _number(self, field: bytes, what: str) -> float:
        try:
            value = float(field.replace(b"_", b"?"))  # Python would read 1_0 as 10
        except ValueError:
            raise self._fail(f"the {what} {_show(field)} is not a number") from None
        if math.isnan(value) or value == math.inf:
            raise self._fail(f"the {what} is {_show(field)}")
        return max(value, LOG10_ZERO)

    def _probability(self, field: bytes) -> float:
        value = self._number(field, "log10 probability")
        if value > 0:
            raise self._fail(f"the log10 probability {_show(field)} is above zero")
        return value

    def _backoff(self, fields: list[bytes], order: int, is_highest: bool) -> float:
        if len(fields) == order + 1:
            return 0.0
        value = self._number(fields[-1], "log10 back-off")
        if is_highest and value != 0:
            raise self._fail(
                f"the back-off {_show(fields[-1])} at the highest order: is a count missing in the header?"
            )
        return value

    def _find_words(self, fields: list[bytes], order: int) -> list[int]:
        if order == 1:
            return [self._add_word(fields[0])]
        try:
            return [self._index[_key(field)] for field in fields]
        except KeyError as error:
            raise self._fail(f"the word {_show(error.args[0])} is not among the 1-grams") from None

    def _add_word(self, field: bytes) -> int:
        try:
            word = field.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._fail(f"is not UTF-8: {error}") from None
        word = UNKNOWN if word == "<UNK>" else word
        key = _key(field)
        if key in self._index:
            raise self._fail(f"the 1-gram {word!r} occurs twice")
        self._index[key] = len(self._words)
        self._words.append(word)
        return self._index[key]


def _read_file(path: Path, read: Callable[[_LineReader], _T]) -> _T:
    """The result of `read` for a file; ArpaError names the file, and the line if known."""
    with _open(path) as lines:
        try:
            return read(_LineReader(lines))
        except _LineError as error:
            raise ArpaError(f"{path}: line {error.line}: {error}") from error


def _key(field: bytes) -> bytes:
    """The key of a word: SRILM and KenLM write the unknown word differently."""
    return b"<unk>" if field == b"<UNK>" else field


def _show(line: bytes) -> str:
    return repr(cut(line.decode("utf-8", "replace")))
