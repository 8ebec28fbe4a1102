"""Reads plain text, one sentence per line, as sentences of word labels."""

from collections.abc import Iterator, Sequence

from penstock.errors import CorpusError
from penstock.scoring.ngram.arpa import BEGIN, END, UNKNOWN
from penstock.scoring.ngram.estimation.text import read_lines
from penstock.scoring.ngram.io import TokenNames

_UNKNOWN_LABEL = 0


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
