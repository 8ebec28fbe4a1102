"""Bataev et al., "Label-Looping: highly efficient decoding for transducers": tables 2, 3, 4 and 6."""

from collections.abc import Iterator, Sequence

from benchmarks.papers.inputs import RandomRun, RandomWindows, encoder_frames
from benchmarks.papers.runner import Row, Settings, both, fewest_and_most_streams, first, lines_of, ratio
from benchmarks.random_models import KINDS, RNNT, TDT
from benchmarks.systems import EACH_TIME, FRAME_LOOPING, LABEL_LOOPING, NEMO, PENSTOCK, PRECOMPUTED
from penstock.kernels.capability import TORCH
from penstock.reporting import markdown_table

_NAMES = {"114M": "L", "1.1B": "XXL"}
_PUBLISHED = {
    (RNNT, "114M"): {1: "1.4, 1.7", 4: "1.6, 1.9", 16: "1.9, 2.3", 32: "2.0, 2.7"},
    (RNNT, "1.1B"): {1: "1.3, 1.8", 4: "1.5, 2.0", 16: "1.5, 2.3", 32: "1.4, 2.6"},
    (TDT, "114M"): {1: "1.0, 1.0", 4: "1.4, 1.8", 16: "2.0, 2.9", 32: "2.1, 3.8"},
    (TDT, "1.1B"): {1: "1.0, 1.0", 4: "1.5, 2.3", 16: "1.5, 3.1", 32: "1.5, 3.9"},
}
"""Speed-up of label-looping by batch, in all and of the decoder alone."""
_PROJECTIONS = {1: "1.21", 4: "1.27", 32: "1.30"}
"""Speed-up of the RNN-T's decoder of 114M by precomputed projections, by batch."""
_GRAPHS = {RNNT: ("751, 1404", "1233, 5197"), TDT: ("1007, 2634", "1393, 9615")}
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
    """Markdown, with the paper's ratios; graphs where they were measured."""
    head = ["", "RTFx", "over frame-looping: paper", "here", "NeMo", "over NeMo"]
    cases = fewest_and_most_streams(rows)
    lines = [
        line
        for kind in KINDS
        for shape, batch in cases
        for line in lines_of(f"{kind.upper()} {_NAMES.get(shape, shape)}-{batch}", ("in all", "decoder"),
                             _compared(rows, kind, shape, batch))
    ]  # fmt: skip
    yield (
        "Tables 2 to 4: RTFx of label-looping, with the encoder or the decoder alone, and speed-ups over "
        "frame-looping and NeMo's label-looping.\n\n"
        f"{markdown_table(head, lines, left=1)}\n\n{_projections(rows)}"
    )
    if any(r.get("driver") in _GRAPH_DRIVERS for r in rows):
        yield f"Table 6: graphs. RTFx in all, decoder alone\n\n{_graphs(rows)}"


def _compared(rows: Sequence[Row], kind: str, shape: str, batch: int) -> list[str]:
    case = {"kind": kind, "shape": shape, "batch": batch, "driver": "no_graphs", "kernels": TORCH}
    frame, label, nemo_frame, nemo_label = (
        first(rows, by=by, decoder=decoder, projections=PRECOMPUTED, **case)
        for by in (PENSTOCK, NEMO)
        for decoder in (FRAME_LOOPING, LABEL_LOOPING)
    )
    return [
        both(label),
        _PUBLISHED.get((kind, shape), {}).get(batch, "-"),
        ratio(label, frame),
        ratio(nemo_label, nemo_frame),
        ratio(label, nemo_label),
    ]


def _projections(rows: Sequence[Row]) -> str:
    """Speed-up of the RNN-T's decoder by precomputed projections, in a sentence."""
    found = []
    for shape, batch in fewest_and_most_streams(rows):
        case = {"kind": RNNT, "shape": shape, "batch": batch, "driver": "no_graphs", "kernels": TORCH}
        pair = (first(rows, by=PENSTOCK, decoder=LABEL_LOOPING, projections=each, **case)
                for each in (PRECOMPUTED, EACH_TIME))  # fmt: skip
        published = f" (paper: {_PROJECTIONS[batch]})" if shape == "114M" and batch in _PROJECTIONS else ""
        found.append(f"{ratio(*pair).split(', ')[-1]}{published} in {_NAMES.get(shape, shape)}-{batch}")
    return f"Precomputed projections speed the RNN-T's decoder up by {', '.join(found)}."


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
