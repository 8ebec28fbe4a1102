"""Pictures beside JSON reports: latency and late chunks over streams with their limits; ratios with their spread."""

import io
import statistics
from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from loadtest.summary import MAX_LATE_SHARE, MAX_P95_FINAL_S
from penstock.reporting import PLOT_STYLE

_FINAL, _CHUNK, _FAILED, _SUSTAINED = "#1f5fa8", "#c76f1a", "#b3261e", "#2e8540"
_WIDTH_IN, _DPI, _COLORS = 8.0, 100, 32
_LATE_FLOOR_PERCENT = 0.05
"""Below, the logarithmic axis is linear: it has 0."""
_TICKS_MS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)
_RATIO_TICKS = (0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100)


@mpl.rc_context(PLOT_STYLE)
def draw_load(document: Mapping[str, Any], path: Path) -> None:
    """Writes a PNG of a report's windows; the report is as JSON has it."""
    figure = Figure(figsize=(_WIDTH_IN, 5.6), layout="constrained")
    latency, late = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    windows = sorted(document["windows"], key=lambda window: (window["streams"], window["seconds"]))
    _draw_latency(latency, windows)
    _draw_late(late, windows)
    if streams := document.get("capacity", {}).get("streams"):
        latency.axvline(streams, color=_SUSTAINED, label=f"sustained: {streams} streams")
        late.axvline(streams, color=_SUSTAINED)
    _save(figure, path, {**document["circumstances"], **document["server"]})


def _draw_latency(axes: Axes, windows: Sequence[Mapping[str, Any]]) -> None:
    streams = [window["streams"] for window in windows]
    limits_ms = 1000 * MAX_P95_FINAL_S, windows[0]["chunk_ms"]
    lines_ms = [[window[f"{name}_latency_ms"]["p95"] for window in windows] for name in ("final", "chunk")]
    known_ms = [*limits_ms, *(value for line_ms in lines_ms for value in line_ms if value)]
    labels = "end of audio to final text", "end of a chunk to its response"
    for line_ms, label, color in zip(lines_ms, labels, (_FINAL, _CHUNK), strict=True):
        axes.plot(streams, [nan if value is None else value for value in line_ms], "o-", color=color, label=label)
    if lost := [each for each, *values in zip(streams, *lines_ms, strict=True) if None in values]:
        axes.plot(lost, [1.7 * max(known_ms)] * len(lost), "^", color=_FAILED, label="more than 5 % without response")
    axes.set(yscale="log", ylabel="p95, ms")
    axes.set_yticks(_TICKS_MS, [f"{tick:,}" for tick in _TICKS_MS])
    axes.minorticks_off()
    axes.set_ylim(0.6 * min(known_ms), 2.0 * max(known_ms))
    _draw_limit(axes, limits_ms[0], f"limit of final texts: {limits_ms[0]:,.0f} ms", _FINAL)
    _draw_limit(axes, limits_ms[1], f"a chunk is late after {limits_ms[1]:g} ms", _CHUNK)


def _draw_late(axes: Axes, windows: Sequence[Mapping[str, Any]]) -> None:
    points = [(window["streams"], 100 * window["late_chunks"] / max(1, window["chunks"])) for window in windows]
    axes.plot(*zip(*points, strict=True), "o-", color=_CHUNK)
    if failed := [point for point, window in zip(points, windows, strict=True) if not window["passed"]]:
        axes.plot(*zip(*failed, strict=True), "X", color=_FAILED, ms=9, label="did not pass")
    axes.set_yscale("symlog", linthresh=_LATE_FLOOR_PERCENT)
    axes.set_yticks([0, 0.1, 1, 10, 100], ["0", "0.1", "1", "10", "100"])
    axes.minorticks_off()
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(ylabel="late chunks, %", xlabel="streams", ylim=(-_LATE_FLOOR_PERCENT / 3, 150))
    _draw_limit(axes, 100 * MAX_LATE_SHARE, f"limit: {100 * MAX_LATE_SHARE:g} %", _CHUNK)


def _draw_limit(axes: Axes, value: float, text: str, color: str) -> None:
    axes.axhline(value, color=color, ls="--", lw=1.2)
    place = {"xycoords": ("axes fraction", "data"), "xytext": (0, 3), "textcoords": "offset points"}
    axes.annotate(
        text, (0.01, value), color=color, bbox={"fc": "white", "ec": "none", "alpha": 0.8, "pad": 0.5}, **place
    )


@mpl.rc_context(PLOT_STYLE)
def draw_ratios(
    ratios: Mapping[str, Mapping[str, Sequence[float]]], path: Path, label: str, facts: Mapping[str, Any]
) -> None:
    """Writes a PNG of each case's and system's ratios, one per round.

    facts: hardware, date, commit.
    """
    names = list(dict.fromkeys(name for systems in ratios.values() for name in systems))
    figure = Figure(figsize=(_WIDTH_IN, 1.4 + len(ratios) * max(0.28, 0.12 * len(names))), layout="constrained")
    axes = figure.subplots()
    for number, name in enumerate(names):
        found = {row: systems[name] for row, systems in enumerate(ratios.values()) if name in systems}
        middles = [statistics.median(values) for values in found.values()]
        below = [middle - min(values) for middle, values in zip(middles, found.values(), strict=True)]
        above = [max(values) - middle for middle, values in zip(middles, found.values(), strict=True)]
        places = [row + 0.6 * ((number + 0.5) / len(names) - 0.5) for row in found]
        axes.errorbar(middles, places, xerr=(below, above), fmt="o", ms=5, capsize=3, label=name)
    axes.axvline(1.0, color="black", lw=1.2)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = [tick for tick in _RATIO_TICKS if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(visible=False, axis="y")
    axes.hlines([border - 0.5 for border in range(1, len(ratios))], low, high, color="#e4e4e4", lw=0.8)
    axes.set_yticks(range(len(ratios)), list(ratios))
    axes.set(xlim=(low, high), ylim=(len(ratios) - 0.5, -0.5), xlabel=f"{label}: median and range of the rounds")
    _save(figure, path, facts)


def _save(figure: Figure, path: Path, facts: Mapping[str, Any]) -> None:
    shown = ("model", "context", "hardware", "date", "commit")
    figure.supxlabel(", ".join(str(facts[name]) for name in shown if facts.get(name)), fontsize=9, color="#555555")
    figure.legend(loc="outside upper left", ncols=3)
    pixels = io.BytesIO()
    figure.savefig(pixels, dpi=_DPI)
    Image.open(pixels).quantize(_COLORS).save(path, optimize=True)
