"""Bataev et al., "Label-Looping: highly efficient decoding for transducers": tables 2, 3, 4 and 6."""

from collections.abc import Iterator, Sequence

from benchmarks.papers.runner import Row, both, decoder_rtfx, first, ratio
from benchmarks.papers.settings import Settings
from benchmarks.papers.speed import RandomRun, RandomWindows, encoder_frames
from benchmarks.random_models import KINDS, RNNT, TDT
from benchmarks.systems import EACH_TIME, FRAME_LOOPING, LABEL_LOOPING, NEMO, PENSTOCK, PRECOMPUTED
from penstock.kernels.capability import TORCH
from penstock.reporting import markdown_table, three_digits

_NAMES = {"114M": "L", "1.1B": "XXL"}
_TABLES = {
    RNNT: (
        "Table 2: RNN-T",
        {
            ("114M", 1): ("70.1 / 106", "95.5 / 179", "1.4 / 1.7"),
            ("114M", 4): ("158 / 200", "257 / 385", "1.6 / 1.9"),
            ("114M", 16): ("314 / 390", "585 / 894", "1.9 / 2.3"),
            ("114M", 32): ("384 / 513", "751 / 1404", "2.0 / 2.7"),
            ("1.1B", 1): ("47.2 / 98.8", "59.3 / 174", "1.3 / 1.8"),
            ("1.1B", 4): ("124 / 191", "183 / 380", "1.5 / 2.0"),
            ("1.1B", 16): ("218 / 389", "322 / 886", "1.5 / 2.3"),
            ("1.1B", 32): ("248 / 533", "352 / 1393", "1.4 / 2.6"),
        },
    ),
    TDT: (
        "Table 3: TDT (the paper's baseline is not exact)",
        {
            ("114M", 1): ("116 / 265", "117 / 269", "1.0 / 1.0"),
            ("114M", 4): ("243 / 358", "348 / 633", "1.4 / 1.8"),
            ("114M", 16): ("416 / 564", "825 / 1616", "2.0 / 2.9"),
            ("114M", 32): ("477 / 697", "1007 / 2634", "2.1 / 3.8"),
            ("1.1B", 1): ("66.1 / 241", "66.1 / 252", "1.0 / 1.0"),
            ("1.1B", 4): ("148 / 259", "220 / 585", "1.5 / 2.3"),
            ("1.1B", 16): ("244 / 478", "375 / 1468", "1.5 / 3.1"),
            ("1.1B", 32): ("265 / 616", "394 / 2434", "1.5 / 3.9"),
        },
    ),
}
_PROJECTIONS = {1: ("148", "179", "1.21"), 4: ("304", "385", "1.27"), 32: ("1080", "1404", "1.30")}
_GRAPHS = {RNNT: ("751 / 1404", "1233 / 5197"), TDT: ("1007 / 2634", "1393 / 9615")}
_GRAPH_DRIVERS = ("full_graph", "no_while_loops", "graphs")
"""Best first; the last one is NeMo's."""


def rows(settings: Settings) -> Iterator[Row]:
    """Both kinds of Transducer in each shape."""
    for shape in settings.shapes:
        windows = RandomWindows(shape, max(settings.batches), encoder_frames(settings), settings.device)
        for kind in KINDS:
            run = RandomRun(settings, kind, shape, settings.batches, windows)
            systems = run.systems((LABEL_LOOPING, FRAME_LOOPING))
            # Table 4 has projections for each pair with one model.
            wanted = (LABEL_LOOPING, RNNT)
            yield from run.rows(
                [s for s in systems if s.variant.projections == PRECOMPUTED or (s.variant.decoder, kind) == wanted]
            )


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown, with the paper's figures."""
    cases = list(dict.fromkeys((r["shape"], r["batch"]) for r in rows))
    for kind, (title, published) in _TABLES.items():
        head = ["", "paper: baseline", "label-looping", "ratio", "here: frame-looping", "label-looping", "ratio",
                "NeMo: frame-looping", "label-looping", "NeMo to here"]  # fmt: skip
        lines = [
            [
                f"{_NAMES.get(shape, shape)}-{batch}",
                *published.get((shape, batch), "---"),
                *_compared(rows, kind, shape, batch),
            ]
            for shape, batch in cases
        ]
        yield f"{title}. RTFx: total / decoder alone\n\n{markdown_table(head, lines, left=1)}"
    yield f"Table 4: projections, RNN-T, RTFx of the decoder alone\n\n{_projections(rows, cases)}"
    yield f"Table 6: graphs. RTFx: total / decoder alone\n\n{_graphs(rows)}"


def _compared(rows: Sequence[Row], kind: str, shape: str, batch: int) -> list[str]:
    case = {"kind": kind, "shape": shape, "batch": batch, "driver": "no_graphs", "kernels": TORCH}
    frame, label, nemo_frame, nemo_label = (
        first(rows, by=by, decoder=decoder, projections=PRECOMPUTED, **case)
        for by in (PENSTOCK, NEMO)
        for decoder in (FRAME_LOOPING, LABEL_LOOPING)
    )
    return [both(frame), both(label), ratio(label, frame), both(nemo_frame), both(nemo_label), ratio(label, nemo_label)]


def _projections(rows: Sequence[Row], cases: Sequence[tuple[str, int]]) -> str:
    lines = []
    for shape, batch in cases:
        case = {"by": PENSTOCK, "kind": RNNT, "shape": shape, "batch": batch, "decoder": LABEL_LOOPING,
                "driver": "no_graphs", "kernels": TORCH}  # fmt: skip
        without, ours = (first(rows, projections=name, **case) for name in (EACH_TIME, PRECOMPUTED))
        published = _PROJECTIONS.get(batch, "---") if shape == "114M" else "---"
        here = [three_digits(decoder_rtfx(one)) if one else "-" for one in (without, ours)]
        lines.append([f"{_NAMES.get(shape, shape)}-{batch}", *published, *here, ratio(ours, without).split(" / ")[-1]])
    head = ["", "paper: for each pair", "precomputed", "ratio", "here: for each pair", "precomputed", "ratio"]
    return markdown_table(head, lines, left=1)


def _graphs(rows: Sequence[Row]) -> str:
    largest = max(r["batch"] for r in rows)
    lines = []
    for kind in KINDS:
        for shape in dict.fromkeys(r["shape"] for r in rows):
            case = {
                "kind": kind,
                "shape": shape,
                "batch": largest,
                "decoder": LABEL_LOOPING,
                "projections": PRECOMPUTED,
            }
            for by in (PENSTOCK, NEMO):
                eager = first(rows, by=by, driver="no_graphs", kernels=TORCH, **case)
                graphs = next(filter(None, (first(rows, by=by, driver=d, **case) for d in _GRAPH_DRIVERS)), None)
                published = _GRAPHS[kind] if shape == "114M" and by == PENSTOCK else "--"
                name = f"{kind.upper()} {_NAMES.get(shape, shape)}-{largest}, {by}"
                lines.append([name, *published, both(eager), both(graphs), ratio(graphs, eager)])
    head = ["", "paper, batch 32: eager", "graphs", "here: eager", "graphs", "ratio"]
    return markdown_table(head, lines, left=1)
