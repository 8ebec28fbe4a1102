"""Edit distance alone, for where the scorer's package is not installed: training, and comparisons beside NeMo."""

from collections.abc import Sequence


def edit_distance(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """Least number of words to replace, drop or add."""
    row = list(range(len(hypothesis) + 1))
    for word in reference:
        diagonal, row[0] = row[0], row[0] + 1
        for j, other in enumerate(hypothesis, start=1):
            diagonal, row[j] = row[j], min(diagonal + (word != other), row[j] + 1, row[j - 1] + 1)
    return row[-1]
