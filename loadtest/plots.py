"""The report's plots, each as an SVG text. The only module that uses matplotlib."""

import io
from collections.abc import Callable, Sequence
from itertools import pairwise

from loadtest.triton_metrics import MODELS

_COLORS = ("#3366a8", "#d98032", "#4f9e62", "#b8433f", "#8172b3", "#937860", "#da8bc3", "#8c8c8c", "#ccb974")
_CHUNK, _FINAL, _LATE = _COLORS[0], _COLORS[1], _COLORS[3]
_GRAY = "#999999"
_WIDTH, _HEIGHT = 8.6, 3.6


def draw_all(windows: Sequence[dict]) -> list[str]:
    """Returns the plots that suit the windows: of one a histogram, of several curves; over time where it went on."""
    plots = [histogram_plot(windows[0])] if len(windows) == 1 else [latency_plot(windows)]
    if is_one_test(windows):
        plots.append(series_plot(windows))
    if len(windows) > 1 and all(window["models"] for window in windows):
        plots.append(queue_plot(windows))
    if all(window["split_ms"] for window in windows):
        plots.append(split_plot(windows))
    return plots


def is_one_test(windows: Sequence[dict]) -> bool:
    """True where the windows follow one another in one test; trials of a capacity search are tests of their own."""
    return all(before["begin_s"] + before["seconds"] <= after["begin_s"] + 1 for before, after in pairwise(windows))


def histogram_plot(window: dict) -> str:
    """Draws how many chunks and final texts had which latency, with the percentiles and the chunk's duration."""

    def draw(figure) -> None:
        parts = (("chunk", "chunk to words", _CHUNK), ("final", "end of audio to final text", _FINAL))
        for axes, (name, title, color) in zip(figure.subplots(1, 2), parts, strict=True):
            counts, edges_ms = window[f"{name}_histogram"]["counts"], window[f"{name}_histogram"]["edges_ms"]
            axes.bar(
                edges_ms[:-1], counts, [b - a for a, b in pairwise(edges_ms)], align="edge", color=color, alpha=0.75,
                edgecolor="white", linewidth=0.5,
            )  # fmt: skip
            axes.set(xlabel="ms", xscale="log", title=title)
            _plain_ticks(axes.xaxis)
            for percentile, style in (("p50", "-"), ("p95", "--"), ("p99", ":")):
                value = window[f"{name}_latency_ms"][percentile]
                if value is not None:
                    axes.axvline(
                        value, color="#333333", linestyle=style, linewidth=1, label=f"{percentile} {value:.0f} ms"
                    )
            if name == "chunk":
                axes.axvline(window["chunk_ms"], color=_LATE, linewidth=1, label=f"one chunk {window['chunk_ms']:g} ms")
            axes.legend(fontsize=7, frameon=False)
            _tidy(axes)

    return _svg(draw)


def series_plot(windows: Sequence[dict]) -> str:
    """Draws chunk latency over the time of the test, and below it the share of late chunks."""

    def draw(figure) -> None:
        latency, late = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        for window in windows:
            points, begin_s = window["series"], window["begin_s"] if len(windows) > 1 else 0.0
            at_s = [begin_s + at_s for at_s in points["at_s"]]
            is_first = window is windows[0]
            for name, style in (("p95", "-"), ("p50", ":")):
                label = f"chunk {name}" if is_first else None
                latency.plot(at_s, _known(points[f"{name}_ms"]), style, color=_CHUNK, label=label)
            shares = [
                100 * count / max(1, chunks)
                for count, chunks in zip(points["late_chunks"], points["chunks"], strict=True)
            ]
            late.bar(at_s, shares, points["step_s"], align="edge", color=_LATE, label="late %" if is_first else None)
            if len(windows) > 1:
                top = latency.get_xaxis_transform()
                latency.text(at_s[0], 1.0, f" {window['streams']:g}", fontsize=7, transform=top, va="top")
        chunk_ms = windows[0]["chunk_ms"]
        latency.axhline(chunk_ms, color=_GRAY, linewidth=1, label=f"one chunk, {chunk_ms:g} ms")
        latency.set(ylabel="ms", yscale="log", title="Over time" + (" (numbers: streams)" if len(windows) > 1 else ""))
        _plain_ticks(latency.yaxis)
        late.set(xlabel="s", ylabel="late %", ylim=(0, max(1.0, late.get_ylim()[1])))
        latency.legend(fontsize=7, frameon=False)
        for axes in (latency, late):
            _tidy(axes)

    return _svg(draw)


def latency_plot(windows: Sequence[dict]) -> str:
    """Draws chunk and end-to-final latency against streams: p50, p95 and p99."""

    def draw(figure) -> None:
        axes = figure.subplots()
        parts = (("chunk_latency_ms", "chunk", _CHUNK), ("final_latency_ms", "end to final", _FINAL))
        for field, name, color in parts:
            for percentile, style in (("p50", ":"), ("p95", "-"), ("p99", "--")):
                values = [window[field][percentile] for window in windows]
                _curve(axes, windows, values, style, color, f"{name} {percentile}")
        chunk_ms = windows[0]["chunk_ms"]
        axes.axhline(chunk_ms, color=_GRAY, linewidth=1, label=f"one chunk, {chunk_ms:g} ms")
        axes.set(xlabel="streams", ylabel="ms", yscale="log", title="Latency")
        _plain_ticks(axes.yaxis)
        _tidy(axes)
        figure.legend(loc="outside right upper", fontsize=8)

    return _svg(draw)


def queue_plot(windows: Sequence[dict]) -> str:
    """Draws queue and compute time of each model against streams, and their sum as M/D/1 predicts it."""

    def draw(figure) -> None:
        axes = figure.subplots()
        parts = (("queue_ms", "--", "queue"), ("compute_ms", "-", "compute"), ("predicted_total_ms", ":", "M/D/1"))
        for model, color in zip(MODELS, _COLORS, strict=False):
            for field, style, name in parts:
                values = [window["models"][model][field] for window in windows]
                _curve(axes, windows, values, style, color, f"{model} {name}")
        axes.set(xlabel="streams", ylabel="ms, mean request", ylim=(0, None), title="Queue and compute time")
        _tidy(axes)
        figure.legend(loc="outside right upper", fontsize=8)

    return _svg(draw)


def split_plot(windows: Sequence[dict]) -> str:
    """Draws the parts of the mean request's time, one bar per window."""

    def draw(figure) -> None:
        axes = figure.subplots()
        labels = [f"{window['streams']:g} streams" for window in windows]
        left = [0.0] * len(windows)
        for part, color in zip(windows[0]["split_ms"], _COLORS, strict=False):
            values = [window["split_ms"][part] for window in windows]
            axes.barh(labels, values, left=left, color=color, label=part, height=0.6)
            left = [start + value for start, value in zip(left, values, strict=True)]
        axes.set(xlabel="ms, mean request", title="Parts of one request's time")
        axes.invert_yaxis()
        _tidy(axes)
        figure.legend(loc="outside right upper", fontsize=8)

    return _svg(draw, height=2.2 + 0.35 * len(windows))


def _curve(axes, windows: Sequence[dict], values: list[float | None], style: str, color: str, label: str) -> None:
    axes.plot([window["streams"] for window in windows], _known(values), style, marker="o", color=color, label=label)


def _known(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _plain_ticks(axis) -> None:
    """Labels a logarithmic axis with 50, 100, 200 and not with powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _tidy(axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)


def _svg(draw: Callable[[object], None], height: float = _HEIGHT) -> str:
    from matplotlib.figure import Figure  # needs neither a display nor pyplot's state

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    draw(figure)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
