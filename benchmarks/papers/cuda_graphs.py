"""Galvez et al., "Speed of light exact greedy decoding for RNN-T speech recognition models on GPU": table 1."""

from collections.abc import Iterator, Sequence

from benchmarks.papers.inputs import RandomRun, RandomWindows, encoder_frames
from benchmarks.papers.runner import Row, Settings, decoder_percent, ratio, select, total_rtfx
from benchmarks.random_models import RNNT, TDT
from benchmarks.systems import CTC, EACH_TIME, FRAME_LOOPING, LABEL_LOOPING, PENSTOCK
from penstock.kernels.capability import TORCH
from penstock.reporting import markdown_table

_DECODERS = {CTC: (CTC,), RNNT: (FRAME_LOOPING, LABEL_LOOPING), TDT: (LABEL_LOOPING,)}
"""Decoders of each kind of model, the paper's baseline first."""
_GRAPHS, _EAGER = "graphs", "eager"
_PUBLISHED = {
    ("1.1B", CTC, CTC, _EAGER): ("1336", "4.5", "-"),
    ("1.1B", RNNT, FRAME_LOOPING, _EAGER): ("415", "67.4", "1, 1"),
    ("1.1B", RNNT, FRAME_LOOPING, _GRAPHS): ("1040", "25.7", "2.51, 6.59"),
    ("1.1B", RNNT, LABEL_LOOPING, _EAGER): ("660", "51.2", "1.59, 2.09"),
    ("1.1B", RNNT, LABEL_LOOPING, _GRAPHS): ("1121", "17.5", "2.70, 10.4"),
    ("1.1B", TDT, LABEL_LOOPING, _EAGER): ("853", "36.8", "1, 1"),
    ("1.1B", TDT, LABEL_LOOPING, _GRAPHS): ("1213", "10.6", "1.42, 4.95"),
    ("0.6B", CTC, CTC, _EAGER): ("2018", "8.5", "-"),
    ("0.6B", RNNT, FRAME_LOOPING, _EAGER): ("467", "75.3", "1, 1"),
    ("0.6B", RNNT, FRAME_LOOPING, _GRAPHS): ("1434", "34.6", "3.07, 6.69"),
    ("0.6B", RNNT, LABEL_LOOPING, _EAGER): ("787", "62.3", "1.69, 2.04"),
    ("0.6B", RNNT, LABEL_LOOPING, _GRAPHS): ("1561", "24.7", "3.35, 10.2"),
}
"""RTFx, % of the time in the decoder, speed-up in all and of the decoder alone."""


def rows(settings: Settings) -> Iterator[Row]:
    """The three kinds of model in each shape, with the largest batch."""
    batches = (max(settings.batches),)
    for shape in settings.shapes:
        windows = RandomWindows(shape, batches[0], encoder_frames(settings), settings.device)
        for kind, decoders in _DECODERS.items():
            run = RandomRun(settings, kind, shape, batches, windows)
            yield from run.rows([s for s in run.systems(decoders) if s.variant.projections != EACH_TIME])


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown: what was measured, then the paper's lines of the same modes."""
    lines: list[list[object]] = []
    modes = {_mode(row) for row in rows}
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    published_shapes = {shape for shape, *_ in _PUBLISHED}
    for shape in shapes if published_shapes & set(shapes) else [*shapes, "1.1B"]:
        for kind, decoders in _DECODERS.items():
            name = f"{kind.upper()} {shape}"
            found = select(rows, shape=shape, kind=kind)
            found.sort(key=lambda row: (row["by"] != PENSTOCK, decoders.index(row["decoder"])))
            for row in found:
                decoder = row["decoder"] if row["driver"] == "no_graphs" else f"{row['decoder']}, {row['driver']}"
                decoder += "" if row["kernels"] == TORCH else f", {row['kernels']}"
                gain = ratio(row, found[0]) if kind != CTC else "-"
                lines.append([name, f"{row['by']} {decoder}", total_rtfx(row), decoder_percent(row), gain])
            lines += [
                [name, f"paper {decoder}{', graphs' if mode == _GRAPHS else ''}", *published]
                for (of_shape, of_kind, decoder, mode), published in _PUBLISHED.items()
                if (of_shape, of_kind) == (shape, kind) and mode in modes
            ]
    batch = max(row["batch"] for row in rows)
    head = ["", "decoder", "RTFx", "% in decoder", "speed-up in all, of the decoder"]
    yield f"Table 1: batch {batch} (the paper: 32)\n\n{markdown_table(head, lines, left=2)}"


def _mode(row: Row) -> str:
    return _EAGER if row["driver"] == "no_graphs" else _GRAPHS
