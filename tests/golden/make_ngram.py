"""Makes tests/golden/ngram: models by KenLM's lmplz, and KenLM's scores of random sentences.

    python -m tests.golden.make_ngram LMPLZ

LMPLZ is the path of lmplz, built from KenLM's source with boost; the Python package `kenlm` must be installed.
"""

import gzip
import json
import random
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import kenlm

GOLDEN = Path(__file__).parent / "ngram"
PIECES = ["▁" + letter for letter in "abcdefgh"] + list("ijklmn")
UNSEEN = ["▁x", "y"]
VOCABULARY_SIZE = 1 + len(PIECES) + len(UNSEEN) + 1  # with <unk> and </s>
MODELS = {"1": [0], "2": [0], "3": [0], "4_pruned": [0, 0, 1, 2], "5": [0], "6_pruned": [0, 0, 0, 1]}


def random_text(generator: random.Random) -> list[list[str]]:
    """Sentences of a Markov chain, so that long n-grams repeat."""
    follow = {piece: generator.choices(PIECES, k=4) for piece in PIECES}
    text = []
    for _ in range(220):
        sentence = [generator.choice(PIECES)]
        while generator.random() < 0.85:
            sentence.append(generator.choice(PIECES if generator.random() < 0.1 else follow[sentence[-1]]))
        text.append(sentence)
    return text


def sri_style(arpa: str, generator: random.Random) -> str:
    """No <unk>, back-offs left out, and suffixes pruned while the longer n-gram stays."""
    sections: list[list[list[str]]] = []
    for line in arpa.splitlines():
        if line.endswith("-grams:"):
            sections.append([])
        elif "\t" in line and "<unk>" not in line:
            sections[-1].append(line.split("\t"))
    kept = [sections[0]]
    for section, longer in pairwise(sections[1:]):
        contexts = {entry[1].rsplit(" ", 1)[0] for entry in longer}
        kept.append([entry for entry in section if entry[1] in contexts or generator.random() < 0.7])
    kept.append(sections[-1])
    lines = ["", "\\data\\"] + [f"ngram {order}={len(section)}" for order, section in enumerate(kept, start=1)]
    for order, section in enumerate(kept, start=1):
        lines += ["", f"\\{order}-grams:"]
        for probability, ngram, *backoff in section:
            leaves_out = bool(backoff) and float(backoff[0]) == 0
            fields = ["-99" if ngram == "<s>" else probability, ngram, *([] if leaves_out else backoff)]
            lines.append("\t".join(fields))
    return "\n".join([*lines, "", "\\end\\", ""])


def kenlm_scores(path: Path, generator: random.Random) -> list[dict]:
    """log10 probabilities of every token and the end, for random and for likely sentences."""
    model = kenlm.Model(str(path))
    sentences = [generator.choices(PIECES + UNSEEN, k=generator.randrange(12)) for _ in range(15)]
    sentences += generator.sample(TEXT, 15)
    return [
        {"tokens": tokens, "log10": [round(score, 6) for score, _, _ in model.full_scores(" ".join(tokens))]}
        for tokens in sentences
    ]


def main(lmplz: str) -> None:
    """Writes all files."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    text = GOLDEN / "text.txt"
    text.write_text("".join(" ".join(sentence) + "\n" for sentence in TEXT), encoding="utf-8")
    scores = {}
    with tempfile.TemporaryDirectory() as directory:
        plain = Path(directory) / "model.arpa"
        for name, prune in MODELS.items():
            command = [lmplz, "-o", name[0], "--text", str(text), "--arpa", str(plain), "-T", directory, "-S", "100M"]
            command += ["--vocab_pad", str(VOCABULARY_SIZE), "--discount_fallback", "--prune", *map(str, prune)]
            subprocess.run(command, check=True)
            if name != "1":  # KenLM scores models of order 2 and more only
                scores[name] = kenlm_scores(plain, random.Random(name))
            (GOLDEN / f"lmplz_{name}.arpa.gz").write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
        arpa = gzip.decompress((GOLDEN / "lmplz_4_pruned.arpa.gz").read_bytes()).decode()
        plain.write_text(sri_style(arpa, random.Random(4)), encoding="utf-8")
        scores["sri"] = kenlm_scores(plain, random.Random("sri"))
        (GOLDEN / "lmplz_sri.arpa.gz").write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    document = {"kenlm": "0.3.0", "prune": MODELS, "pieces": PIECES, "never_seen": UNSEEN, "scores": scores}
    (GOLDEN / "kenlm.json").write_text(json.dumps(document, ensure_ascii=False) + "\n", encoding="utf-8")


TEXT = random_text(random.Random(0))

if __name__ == "__main__":
    main(sys.argv[1])
