"""The report's plots, each as an SVG text. The only module that uses matplotlib."""

import io
from collections.abc import Callable, Sequence

from loadtest.triton_metrics import MODELS

_COLORS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c", "#ccb974")
_WIDTH, _HEIGHT = 8.6, 3.8


def latency_plot(windows: Sequence[dict]) -> str:
    """Draws chunk and end-to-final latency against streams: p50, p95 and p99."""

    def draw(axes) -> None:
        parts = (("chunk_latency_ms", "chunk", _COLORS[0]), ("final_latency_ms", "end to final", _COLORS[1]))
        for field, name, color in parts:
            for percentile, style in (("p50", ":"), ("p95", "-"), ("p99", "--")):
                values = [window[field][percentile] for window in windows]
                _curve(axes, windows, values, style, color, f"{name} {percentile}")
        chunk_ms = windows[0]["chunk_ms"]
        axes.axhline(chunk_ms, color="#999999", linewidth=1, label=f"one chunk, {chunk_ms:g} ms")
        axes.set(xlabel="streams", ylabel="ms", yscale="log", title="Latency")

    return _svg(draw)


def queue_plot(windows: Sequence[dict]) -> str:
    """Draws queue and compute time of each model against streams, and their sum as M/D/1 predicts it."""

    def draw(axes) -> None:
        parts = (("queue_ms", "--", "queue"), ("compute_ms", "-", "compute"), ("predicted_total_ms", ":", "M/D/1"))
        for model, color in zip(MODELS, _COLORS, strict=False):
            for field, style, name in parts:
                values = [window["models"][model][field] for window in windows]
                _curve(axes, windows, values, style, color, f"{model} {name}")
        axes.set(xlabel="streams", ylabel="ms, mean request", ylim=(0, None), title="Queue and compute time")

    return _svg(draw)


def split_plot(windows: Sequence[dict]) -> str:
    """Draws the parts of the mean request's time, one bar per window."""

    def draw(axes) -> None:
        labels = [f"{window['streams']:g} streams" for window in windows]
        left = [0.0] * len(windows)
        for part, color in zip(windows[0]["split_ms"], _COLORS, strict=False):
            values = [window["split_ms"][part] for window in windows]
            axes.barh(labels, values, left=left, color=color, label=part, height=0.6)
            left = [start + value for start, value in zip(left, values, strict=True)]
        axes.set(xlabel="ms, mean request", title="Parts of one request's time")
        axes.invert_yaxis()

    return _svg(draw, height=2.2 + 0.35 * len(windows))


def _curve(axes, windows: Sequence[dict], values: list[float | None], style: str, color: str, label: str) -> None:
    known = [float("nan") if value is None else value for value in values]
    axes.plot([window["streams"] for window in windows], known, style, marker="o", color=color, label=label)


def _svg(draw: Callable[[object], None], height: float = _HEIGHT) -> str:
    from matplotlib.figure import Figure  # needs neither a display nor pyplot's state

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
