"""Word and character errors of single utterances. The alignment is jiwer's; knows nothing of recognition.

Text is compared in lower case with runs of white space as one blank, and is not normalised any further.
"""

from collections.abc import Iterable
from dataclasses import dataclass

_NO_PAIRS: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class EditCounts:
    """Edits that turn references into hypotheses; the unit is a word or a character. They add up."""

    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    reference_units: int = 0

    def __add__(self, other: "EditCounts") -> "EditCounts":
        return EditCounts(
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
            self.reference_units + other.reference_units,
        )

    @property
    def edits(self) -> int:
        """All of them."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float | None:
        """Edits for each unit of the references: WER or CER. None without references."""
        return self.edits / self.reference_units if self.reference_units else None


@dataclass(frozen=True)
class UtteranceErrors:
    """One utterance's hypothesis against its reference."""

    reference: str
    """As compared."""
    hypothesis: str
    words: EditCounts
    characters: EditCounts
    """Blanks between words count as characters."""
    substituted: tuple[tuple[str, str], ...] = _NO_PAIRS
    """(reference word, hypothesis word)"""
    deleted: tuple[str, ...] = ()
    inserted: tuple[str, ...] = ()


def normalise(text: str) -> str:
    """Lower case, white space collapsed."""
    return " ".join(text.lower().split())


def compare(reference: str, hypothesis: str) -> UtteranceErrors:
    """Aligns an utterance's texts after `normalise`. With an empty reference every word is an insertion."""
    reference, hypothesis = normalise(reference), normalise(hypothesis)
    if not reference:
        inserted = tuple(hypothesis.split())
        words, characters = EditCounts(insertions=len(inserted)), EditCounts(insertions=len(hypothesis))
        return UtteranceErrors(reference, hypothesis, words, characters, inserted=inserted)
    import jiwer  # here, so that everything else works without it

    aligned = jiwer.process_words(reference, hypothesis)
    (spoken,), (heard,), (chunks,) = aligned.references, aligned.hypotheses, aligned.alignments
    of_kind = {kind: [chunk for chunk in chunks if chunk.type == kind] for kind in ("substitute", "delete", "insert")}
    return UtteranceErrors(
        reference,
        hypothesis,
        _counts(aligned),
        _counts(jiwer.process_characters(reference, hypothesis)),
        substituted=tuple(
            pair
            for chunk in of_kind["substitute"]
            for pair in zip(_spoken(spoken, chunk), _heard(heard, chunk), strict=True)
        ),
        deleted=tuple(word for chunk in of_kind["delete"] for word in _spoken(spoken, chunk)),
        inserted=tuple(word for chunk in of_kind["insert"] for word in _heard(heard, chunk)),
    )


def total(counts: Iterable[EditCounts]) -> EditCounts:
    """Their sum."""
    return sum(counts, EditCounts())


def _counts(aligned) -> EditCounts:
    return EditCounts(
        aligned.substitutions,
        aligned.deletions,
        aligned.insertions,
        aligned.hits + aligned.substitutions + aligned.deletions,
    )


def _spoken(words: list[str], chunk) -> list[str]:
    return words[chunk.ref_start_idx : chunk.ref_end_idx]


def _heard(words: list[str], chunk) -> list[str]:
    return words[chunk.hyp_start_idx : chunk.hyp_end_idx]
