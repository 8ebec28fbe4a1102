"""The slow, obvious edit distance that the scorer is compared with."""

from collections.abc import Sequence


def edit_distance(reference: Sequence, hypothesis: Sequence) -> int:
    """Least number of units to change, delete or insert, by the full table."""
    rows, columns = len(reference) + 1, len(hypothesis) + 1
    cost = [[i + j if i == 0 or j == 0 else 0 for j in range(columns)] for i in range(rows)]
    for i in range(1, rows):
        for j in range(1, columns):
            changed = cost[i - 1][j - 1] + (reference[i - 1] != hypothesis[j - 1])
            cost[i][j] = min(changed, cost[i - 1][j] + 1, cost[i][j - 1] + 1)
    return cost[-1][-1]
