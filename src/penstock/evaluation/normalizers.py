"""Normalization of texts before their words are compared: published figures of WER depend on it.

`basic` and `whisper` are the normalizers of Whisper, from the package whisper-normalizer, which NeMo uses as well.
"""

import unicodedata
from collections.abc import Callable
from functools import cached_property
from importlib.metadata import version

from penstock.model.languages import without_tags
from penstock_common.writing import join_texts, split_words

NONE, BASIC, WHISPER = NORMALIZERS = ("none", "basic", "whisper")
PACKAGE = "whisper-normalizer"


class Normalizer:
    """Removes language tags, then what its kind removes; the result is in NFC and lower case.

    It has one blank between words of scripts with spaces, and none beside the characters of others.

    numbers: the language whose rules write numbers as figures before, in both texts alike; "" for none.

    none: nothing more. basic: punctuation, symbols and text in brackets become spaces, in any language. whisper: also
    English fillers, contractions, titles, numbers and British spelling.
    """

    def __init__(self, name: str = NONE, numbers: str = ""):
        self.name, self._numbers = name, numbers

    def __call__(self, text: str) -> str:
        """The text as it is compared."""
        text = unicodedata.normalize("NFC", without_tags(text))
        if self._numbers:
            from penstock.pipeline.results.figures import figures_of  # with torch, which a run through a server has not

            text = figures_of(text, self._numbers)
        return join_texts(split_words(self._function(text).lower()))

    def __str__(self) -> str:
        figures = f", numbers as figures ({self._numbers})" if self._numbers else ""
        return (self.name if self.name == NONE else f"{self.name} ({PACKAGE} {version(PACKAGE)})") + figures

    @cached_property
    def _function(self) -> Callable[[str], str]:
        if self.name == NONE:
            return str
        # optional (extra `evaluate`)
        from whisper_normalizer.basic import BasicTextNormalizer
        from whisper_normalizer.english import EnglishTextNormalizer

        # Marks are vowels in Devanagari and other scripts: without them words fall apart.
        return EnglishTextNormalizer() if self.name == WHISPER else BasicTextNormalizer(preserve_marks=True)
