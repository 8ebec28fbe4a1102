"""A tokenizer for random weights: pieces of letters that nobody trained, and words of these pieces. Knows no model."""

from itertools import islice, product
from string import ascii_lowercase

_LETTERS = 3
"""Of each piece, so that a word is cut into pieces in one way only."""


class MadeUpTokenizer:
    """What a `Tokenizer` does, for any number of pieces up to 35,152.

    Piece 0 is the unknown one. Of the others, those of odd number begin a word; n and n + 1 (n even) have the same
    letters.
    """

    def __init__(self, size: int):
        self.size, self.unknown = size, 0
        letters = ("".join(letters) for letters in product(ascii_lowercase, repeat=_LETTERS))
        self._pieces = ["??"]
        for number, code in enumerate(islice(letters, size // 2 + 1)):
            self._pieces += [code, " " + code] if number else [" " + code]
        del self._pieces[size:]
        self._numbers = {piece: number for number, piece in enumerate(self._pieces)}

    def piece(self, token: int) -> str:
        """What token id 0 .. size - 1 stands for."""
        return self._pieces[token]

    def encode(self, text: str) -> list[int]:
        """The tokens of `text`; `unknown` stands for what cannot be written."""
        tokens = []
        for word in text.split():
            codes = [word[start : start + _LETTERS] for start in range(0, len(word), _LETTERS)]
            codes[0] = " " + codes[0]
            tokens += [self._numbers.get(code, self.unknown) for code in codes]
        return tokens

    def decode(self, tokens: list[int]) -> str:
        """The text of a whole sequence."""
        return "".join(self._pieces[token] for token in tokens).lstrip(" ")
