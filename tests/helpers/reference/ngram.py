"""A back-off language model as dictionaries and recursion, in base-10 logarithms, one word at a time."""

import gzip
from pathlib import Path

UNKNOWN, FLOOR = "<unk>", -100.0


class NgramReference:
    """`probabilities` and `backoffs` by tuples of words."""

    def __init__(self, probabilities: dict[tuple[str, ...], float], backoffs: dict[tuple[str, ...], float]):
        self.probabilities, self.backoffs = probabilities, backoffs
        self.order = max(map(len, probabilities))

    @classmethod
    def read(cls, path: Path) -> "NgramReference":
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
        probabilities, backoffs, order = {}, {}, 0
        for line in text.splitlines():
            if line.startswith("\\"):
                order = int(line[1:].split("-")[0]) if line.endswith("-grams:") else 0
            elif order and line.strip():
                fields = line.split()
                ngram = tuple(fields[1 : order + 1])
                probabilities[ngram] = float(fields[0])
                backoffs[ngram] = float(fields[order + 1]) if len(fields) > order + 1 else 0.0
        return cls(probabilities, backoffs)

    def score(self, history: tuple[str, ...], word: str) -> float:
        """log10 P(word | history)."""
        known = tuple(each if (each,) in self.probabilities else UNKNOWN for each in (*history, word))
        return self._score(known[-self.order :])

    def _score(self, ngram: tuple[str, ...]) -> float:
        if ngram in self.probabilities:
            return self.probabilities[ngram]
        if len(ngram) == 1:
            return FLOOR
        return self.backoffs.get(ngram[:-1], 0.0) + self._score(ngram[1:])

    def score_sentence(self, words: list[str]) -> list[float]:
        """log10 of the probability of every word and of `</s>`."""
        history = ("<s>",)
        scores = []
        for word in [*words, "</s>"]:
            scores.append(self.score(history, word))
            history = (*history, word)
        return scores


def write_random_arpa(
    path: Path, chance, words: list[str], order: int, with_unknown: bool, per_order: int = 25
) -> None:
    """An ARPA file of random n-grams and weights: contexts and suffixes are missing at random, nothing sums to one."""
    vocabulary = ["<s>", "</s>", *words] + (["<unk>"] if with_unknown else [])
    inner = [word for word in vocabulary if word not in ("<s>", "</s>")]
    lines = []
    counts = []
    for length in range(1, order + 1):
        # a dict, for its order: a set of strings has another in each process
        ngrams = dict.fromkeys((word,) for word in vocabulary) if length == 1 else {}
        while length > 1 and len(ngrams) < per_order:
            first = chance.choice(["<s>", *inner])
            ngram = (first, *chance.choices(inner, k=length - 2), chance.choice(["</s>", *inner]))
            ngrams[ngram] = None
        counts.append(f"ngram {length}={len(ngrams)}")
        lines.append(f"\n\\{length}-grams:")
        for ngram in sorted(ngrams, key=lambda _: chance.random()):
            backoff = f"\t{chance.uniform(-2, 0.5):.5f}" if length < order and chance.random() < 0.7 else ""
            lines.append(f"{chance.uniform(-4, 0):.5f}\t{' '.join(ngram)}{backoff}")
    path.write_text("\n".join(["\\data\\", *counts, *lines, "", "\\end\\", ""]), encoding="utf-8")
