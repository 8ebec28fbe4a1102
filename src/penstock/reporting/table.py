"""Markdown tables that also read well on a terminal. Knows nothing of what stands in them."""

from collections.abc import Iterable, Sequence


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]], left: int = 0) -> str:
    """The first `left` columns to the left, the others to the right; floats with three digits. No line's end."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(2, *map(len, column)) for column in zip(*cells, strict=True)]
    rule = ["-" * width if i < left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    return "\n".join(_line(row, widths, left) for row in (cells[0], rule, *cells[1:]))


def three_digits(value: float) -> str:
    """A number as people compare them: 123, 12.3, 1.23."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _cell(value: object) -> str:
    return three_digits(value) if isinstance(value, float) else str(value)


def _line(cells: Sequence[str], widths: Sequence[int], left: int) -> str:
    aligned = (
        cell.ljust(width) if i < left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "| " + " | ".join(aligned) + " |"
