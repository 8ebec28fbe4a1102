"""The report's plots, each as an SVG text. The only place that knows matplotlib. Knows no files."""

import io
from collections.abc import Callable, Sequence

from loadtest.triton_metrics import MEMBERS

_COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c", "#ccb974")
_SIZE = (8.6, 3.8)


def latency_plot(windows: Sequence[dict]) -> str:
    """Chunk and end-to-final latency against streams; p50, p95 and p99."""

    def draw(axes) -> None:
        streams = [window["streams"] for window in windows]
        parts = (("chunk_latency_ms", "chunk", _COLOURS[0]), ("final_latency_ms", "end to final", _COLOURS[1]))
        for field, name, colour in parts:
            for percentile, style in (("p50", ":"), ("p95", "-"), ("p99", "--")):
                values = [_or_nan(window[field][percentile]) for window in windows]
                axes.plot(streams, values, style, marker="o", color=colour, label=f"{name} {percentile}")
        chunk_ms = windows[0]["chunk_ms"]
        axes.axhline(chunk_ms, color="#999999", linewidth=1, label=f"one chunk, {chunk_ms:g} ms")
        axes.set(xlabel="streams", ylabel="ms", yscale="log", title="Latency against streams")

    return _svg(draw)


def queue_plot(windows: Sequence[dict]) -> str:
    """Queue and compute time of each member against streams."""

    def draw(axes) -> None:
        streams = [window["streams"] for window in windows]
        for member, colour in zip(MEMBERS, _COLOURS, strict=False):
            for field, style in (("queue_ms", "--"), ("compute_ms", "-")):
                values = [_or_nan(window["members"][member][field]) for window in windows]
                axes.plot(streams, values, style, marker="o", color=colour, label=f"{member} {field[:-3]}")
        axes.set(xlabel="streams", ylabel="ms, mean request", ylim=(0, None), title="Queue against compute")

    return _svg(draw)


def prediction_plot(windows: Sequence[dict]) -> str:
    """Time in each member (queue and compute), as measured and as M/D/1 predicts it."""

    def draw(axes) -> None:
        streams = [window["streams"] for window in windows]
        for member, colour in zip(MEMBERS, _COLOURS, strict=False):
            of_member = [window["members"][member] for window in windows]
            measured = [_or_nan(times["queue_ms"] + times["compute_ms"]) for times in of_member]
            predicted = [_or_nan(times["predicted_total_ms"]) for times in of_member]
            axes.plot(streams, measured, "-", marker="o", color=colour, label=f"{member} measured")
            axes.plot(streams, predicted, ":", marker="x", color=colour, label=f"{member} M/D/1")
        axes.set(xlabel="streams", ylabel="ms, mean request", ylim=(0, None), title="Measured against M/D/1")

    return _svg(draw)


def split_plot(windows: Sequence[dict]) -> str:
    """Where the mean request's time goes: one bar for each window."""

    def draw(axes) -> None:
        labels = [f"{window['streams']:g} streams" for window in windows]
        left = [0.0] * len(windows)
        for part, colour in zip(windows[0]["split_ms"], _COLOURS, strict=False):
            values = [window["split_ms"][part] for window in windows]
            axes.barh(labels, values, left=left, color=colour, label=part, height=0.6)
            left = [start + value for start, value in zip(left, values, strict=True)]
        axes.set(xlabel="ms, mean request", title="The split of one request's time")
        axes.invert_yaxis()

    return _svg(draw, height=2.2 + 0.35 * len(windows))


def _svg(draw: Callable[[object], None], height: float = _SIZE[1]) -> str:
    from matplotlib.figure import Figure  # a figure of its own needs no display and no state of pyplot's

    figure = Figure(figsize=(_SIZE[0], height), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
