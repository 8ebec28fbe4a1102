"""Decoding graphs of real and of synthetic text for the bundled tokenizer."""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.model.bundle_files import sha256_of
from penstock.model.tokenizer import Tokenizer
from penstock.scoring.ngram.arpa import Arpa, read_arpa, write_arpa
from penstock.scoring.ngram.estimation.build import build_lm
from penstock.scoring.ngram.estimation.text import WordText
from penstock.scoring.wfst.building.compile import CompiledGraph, compile_graph
from penstock.scoring.wfst.building.lexicon import Entries, build_lexicon, lm_words
from penstock.scoring.wfst.graph_file import Topology

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "models" / "an4-rnnt-hybrid" / "tokenizer.model"
RECORDINGS = ROOT / "tests" / "data" / "an4" / "manifest.jsonl"
_ONSETS = ("", "b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "st", "t", "th", "tr", "v", "w")
_NUCLEI = ("a", "e", "ee", "i", "o", "ou", "u", "y")
_CODAS = ("", "", "", "n", "r", "s", "t", "ty")


def recorded_text() -> list[str]:
    """Sentences of the bundled recordings."""
    return [json.loads(line)["text"] for line in RECORDINGS.read_text(encoding="utf-8").splitlines()]


def synthetic_words(count: int, chance: random.Random) -> list[str]:
    """Distinct words of one to three syllables: many are beginnings of others, so they end on epsilon arcs."""
    words: dict[str, None] = {}
    while len(words) < count:
        syllables = chance.choice((1, 2, 2, 3))
        parts = (chance.choice(_ONSETS) + chance.choice(_NUCLEI) + chance.choice(_CODAS) for _ in range(syllables))
        words["".join(parts)] = None
    return list(words)


def synthetic_text(words: Sequence[str], sentences: int, chance: random.Random) -> Iterator[str]:
    """Sentences of 4 to 12 words in which each word has four likely successors; all words come up at first."""
    successors = {word: chance.choices(words, k=4) for word in words}
    yield from words
    for _ in range(sentences):
        word = chance.choice(words)
        sentence = [word]
        for _ in range(chance.randint(3, 11)):
            word = chance.choice(successors[word]) if chance.random() < 0.7 else chance.choice(words)
            sentence.append(word)
        yield " ".join(sentence)


def word_arpa(lines: Sequence[str], path: Path, order: int = 3, prune: Sequence[int] = ()) -> Arpa:
    """A language model of the words of `lines`, as it is read back from the file `path`."""
    source = path.with_suffix(".txt")
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = WordText()
    sentences = list(text.read([str(source)]))
    write_arpa(build_lm(sentences, text.names, order, prune).arpa, path)
    return read_arpa(path)


def compile_words(arpa: Arpa, topology: Topology = "normal", entries: Entries | None = None) -> CompiledGraph:
    """The graph of a language model for the bundled tokenizer; entries: of a lexicon."""
    tokenizer = Tokenizer(TOKENIZER)
    known = lm_words(arpa.words, tokenizer)
    lexicon = build_lexicon(entries or {word: [()] for word in known}, known, tokenizer)
    return compile_graph(arpa, lexicon, topology, tokenizer.size, sha256_of(TOKENIZER))


def ten_thousand_words_arpa(lines: Sequence[str], path: Path) -> Arpa:
    """A trigram model of `lines` and of 10,000 synthetic words."""
    chance = random.Random(0)
    synthetic = synthetic_text(synthetic_words(10_000, chance), 20_000, chance)
    return word_arpa([*lines, *synthetic], path, prune=[0, 0, 1])
