"""Arrays to an ARPA file, in the form of KenLM: tabs, seven digits, back-offs for all but the highest order."""

from pathlib import Path
from typing import TextIO

from penstock.errors import PenstockError
from penstock.fusion.arpa import END, Arpa, ArpaSection


def write_arpa(arpa: Arpa, path: str | Path) -> None:
    """Writes UTF-8 text; `path` is replaced. A word that the format cannot hold raises PenstockError naming it."""
    for word in arpa.words:
        if not word or len(word.encode("utf-8").split()) != 1 or word.encode("utf-8") != word.encode("utf-8").strip():
            raise PenstockError(f"the word {word!r} cannot be written to an ARPA file")
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
        raise PenstockError(f"{path}: {error.strerror or error}") from error


def _write_section(file: TextIO, words: list[str], section: ArpaSection, is_highest: bool) -> None:
    for row, probability, backoff in zip(
        section.words.tolist(), section.log10_probabilities.tolist(), section.log10_backoffs.tolist(), strict=True
    ):
        line = f"{probability:.7g}\t{' '.join([words[word] for word in row])}"
        # Nothing follows an end of sentence, so it never backs off.
        file.write(f"{line}\n" if is_highest or words[row[-1]] == END else f"{line}\t{backoff:.7g}\n")
