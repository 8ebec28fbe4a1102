"""The words of a graph, their spellings as tokens, and the transducer L from tokens to words.

Words that share a spelling, and spellings that begin others, end with a disambiguation symbol #1, #2 ..., so that L∘G
can be determinized (Mohri, Pereira & Riley 2008, section 4).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock.errors import GraphError, cut
from penstock.model.tokenizer import Tokenizer
from penstock.scoring.ngram.arpa import BEGIN, END, UNKNOWN
from penstock.scoring.wfst.building.fst_arrays import EPSILON, FstArrays, join_arcs

_SPECIAL = (BEGIN, END, UNKNOWN)
_SPACE = "\u2581"
_NEMO_TOKEN_OFFSET = 100
_NAMED_IN_ERRORS = 5
MAX_LEXICON_BYTES = 256 << 20
MAX_SPELLING = 1000
"""Pieces of one spelling: their beginnings take time and memory that grow with its square."""

Entries = Mapping[str, Sequence[Sequence[str]]]
"""The spellings of each word as names of pieces; () stands for the tokenizer's own spelling."""


class Lexicon(NamedTuple):
    """Words and spellings, as in `DecodingGraph`."""

    words: tuple[str, ...]
    """[W], word 0 is ""."""
    spelling_words: np.ndarray
    """[W + 1] int32."""
    spelling_offsets: np.ndarray
    """[P + 1] int32."""
    spelling_tokens: np.ndarray
    """int32, tokens 0 .. V-1."""

    def spellings(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(word, tokens) of each spelling."""
        words = np.repeat(np.arange(len(self.words)), np.diff(self.spelling_words)).tolist()
        offsets, tokens = self.spelling_offsets.tolist(), self.spelling_tokens.tolist()
        for word, first, last in zip(words, offsets[:-1], offsets[1:], strict=True):
            yield word, tuple(tokens[first:last])


class Symbols(NamedTuple):
    """Labels of the transducers. Inputs: token + 1, blank, #0, #1 ...; outputs: words, #0."""

    vocabulary_size: int
    word_count: int
    """W, word 0 included."""

    @property
    def blank(self) -> int:
        """Input label of blank."""
        return self.vocabulary_size + 1

    @property
    def backoff_input(self) -> int:
        """#0 as an input; #k follows k labels later."""
        return self.vocabulary_size + 2

    @property
    def backoff_output(self) -> int:
        """#0 as a word."""
        return self.word_count


def lm_words(words: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """The words of a language model without its special ones; GraphError if they are pieces of a tokenizer."""
    kept = [word for word in words if word not in _SPECIAL]
    pieces = [word for word in kept if _SPACE in word]
    last = _NEMO_TOKEN_OFFSET + tokenizer.size
    is_offset = all(len(word) == 1 and _NEMO_TOKEN_OFFSET <= ord(word) < last for word in kept)
    if pieces or (is_offset and any(_spell(word, tokenizer) is None for word in kept)):
        raise GraphError(
            f"the language model's words are pieces of a tokenizer ({_names(pieces or kept)}), expected whole words: "
            "`penstock lm build --words` makes such a model"
        )
    if not kept:
        raise GraphError("the language model has no words")
    return kept


def read_entries(path: Path, with_pieces: bool) -> Entries:
    """Reads a list of words, or with_pieces a lexicon: `WORD [PIECE ...]` a line; a word may have several lines.

    GraphError names the file and, if known, the line.
    """
    entries: dict[str, dict[tuple[str, ...], None]] = {}
    try:
        with path.open("rb") as file:
            data = file.read(MAX_LEXICON_BYTES + 1)
    except OSError as error:
        raise GraphError(f"{path}: {error.strerror or error}") from error
    if len(data) > MAX_LEXICON_BYTES:
        raise GraphError(f"{path}: has more than {MAX_LEXICON_BYTES >> 20} MiB")
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            word, *pieces = line.decode("utf-8-sig" if number == 1 else "utf-8").split() or [""]
        except UnicodeDecodeError as error:
            raise GraphError(f"{path}: line {number}: not UTF-8: {error}") from error
        if word in _SPECIAL or (pieces and not with_pieces):
            accepted = "WORD [PIECE ...]" if with_pieces else "one word; --lexicon takes spellings"
            raise GraphError(f"{path}: line {number}: {cut(repr(' '.join([word, *pieces])))}, expected {accepted}")
        if word:
            entries.setdefault(word, {})[tuple(pieces)] = None
    if not entries:
        raise GraphError(f"{path}: there are no words")
    return {word: list(spellings) for word, spellings in entries.items()}


def build_lexicon(entries: Entries, known: Iterable[str], tokenizer: Tokenizer) -> Lexicon:
    """The lexicon of `entries`.

    GraphError counts and names words that are not `known`, those of the language model; words that the tokenizer
    cannot write; and pieces that it lacks. It rejects models with characters or several tokenizers.
    """
    if tokenizer.separator is not None or tokenizer.vocabulary.languages:
        kind = "of one tokenizer per language" if tokenizer.vocabulary.languages else "characters"
        raise GraphError(f"the model's labels are {kind}; accepted: the pieces of one SentencePiece model")
    total = f"{len(entries)} words"
    _reject(sorted(entries.keys() - set(known)), total, "are not in the language model", "words among its 1-grams")
    labels = _piece_labels(tokenizer)
    used = {piece for each in entries.values() for pieces in each for piece in pieces}
    _reject(
        sorted(used - labels.keys()), f"{len(used)} pieces", "are not the model's", "those of its tokenizer, as ▁six"
    )
    counts, unwritable = [0], []
    spellings: list[tuple[int, ...]] = []
    for word, each in entries.items():
        word_spellings: dict[tuple[int, ...], None] = {}
        for pieces in each:
            tokens = [labels[piece] for piece in pieces] if pieces else _spell(word, tokenizer)
            if tokens is None:
                unwritable.append(word)
            elif len(tokens) > MAX_SPELLING:
                raise GraphError(f"{cut(repr(word))} has {len(tokens)} pieces; accepted: up to {MAX_SPELLING}")
            else:
                word_spellings[tuple(tokens)] = None
        counts.append(len(word_spellings))
        spellings += word_spellings
    _reject(
        unwritable,
        total,
        "cannot be written by the model's tokenizer",
        "words in its alphabet; leave them out (--words) or spell them (--lexicon)",
    )
    return Lexicon(
        words=("", *entries),
        spelling_words=_offsets(counts),
        spelling_offsets=_offsets([len(tokens) for tokens in spellings]),
        spelling_tokens=np.array([token for tokens in spellings for token in tokens], np.int32),
    )


def lexicon_fst(lexicon: Lexicon, symbols: Symbols) -> FstArrays:
    """L: a loop of arcs at state 0 per spelling, the word on its first token; a loop of #0. Sorted by output."""
    paths = []
    ends = disambiguation(lexicon)
    for (word, tokens), end in zip(lexicon.spellings(), ends, strict=True):
        labels = [token + 1 for token in tokens]
        paths.append((word, [*labels, symbols.backoff_input + end] if end else labels))
    lengths = np.array([len(labels) for _, labels in paths])
    arcs = int(lengths.sum())
    is_first = np.zeros(arcs, bool)
    is_first[np.cumsum(lengths) - lengths] = True
    is_last = np.roll(is_first, -1)
    # The arcs of a path lead through states of its own, numbered along all paths: state 0 is where paths begin and end.
    inner = np.cumsum(~is_last)
    outputs = np.where(is_first, np.repeat([word for word, _ in paths], lengths), EPSILON)
    inputs = np.array([label for _, labels in paths for label in labels])
    sources = np.where(is_first, 0, np.roll(inner, 1))
    targets = np.where(is_last, 0, inner)
    final_weights = np.full(int(inner[-1]) + 1, np.inf)
    final_weights[0] = 0
    backoff = (np.zeros(1, int), symbols.backoff_input, symbols.backoff_output, 0.0, 0)
    fst = join_arcs(0, final_weights, (sources, inputs, outputs, 0.0, targets), backoff)
    return fst.select(np.lexsort((fst.outputs, fst.sources)))


def disambiguation(lexicon: Lexicon) -> list[int]:
    """The k of #k after each spelling [P]; 0: none. Spellings that are equal get 1, 2, ...."""
    spellings = [tokens for _, tokens in lexicon.spellings()]
    times = Counter(spellings)
    beginnings = {tokens[:length] for tokens in times for length in range(1, len(tokens))}
    seen: dict[tuple[int, ...], int] = defaultdict(int)
    result = []
    for tokens in spellings:
        if times[tokens] > 1 or tokens in beginnings:
            seen[tokens] += 1
        result.append(seen[tokens])
    return result


def _spell(word: str, tokenizer: Tokenizer) -> list[int] | None:
    """The tokenizer's spelling; None where it has none."""
    tokens = tokenizer.encode(word)
    return None if not tokens or tokenizer.unknown in tokens else tokens


def _piece_labels(tokenizer: Tokenizer) -> dict[str, int]:
    """Tokens by the name of their piece, without the unknown token and control tokens."""
    labels = {}
    for token in range(tokenizer.size):
        piece = tokenizer.piece(token)
        name = f"<0x{piece[0]:02X}>" if isinstance(piece, bytes) else piece.replace(" ", _SPACE)
        if name and token != tokenizer.unknown:
            labels[name] = token
    return labels


def _reject(names: Sequence[str], total: str, problem: str, accepted: str) -> None:
    if names:
        raise GraphError(f"{len(names)} of {total} {problem}: {_names(names)}; accepted: {accepted}")


def _names(words: Sequence[str]) -> str:
    more = f" and {len(words) - _NAMED_IN_ERRORS} more" if len(words) > _NAMED_IN_ERRORS else ""
    return ", ".join(cut(repr(word)) for word in words[:_NAMED_IN_ERRORS]) + more


def _offsets(counts: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
