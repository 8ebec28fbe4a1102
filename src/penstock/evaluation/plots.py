"""Plots of an evaluation in one SVG: WER by decoder, or by a swept option, and WER by the length of recordings."""

import io
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from penstock.evaluation.errors import EditCounts, total
from penstock.evaluation.runs import RunResult
from penstock.reporting import PLOT_STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LENGTHS_S = (0.0, 2.0, 5.0, 10.0, 20.0, 60.0, float("inf"))
_MAX_LINES = 6
"""More lines in one plot cannot be told apart."""
_STYLE: Any = {**PLOT_STYLE, "svg.fonttype": "none", "svg.hashsalt": "penstock"}


def draw_plots(results: Sequence[RunResult], swept: str | None = None) -> str:
    """An SVG element; "" without speech. swept: the option of a sweep."""
    if not all(result.score.speech.words.reference_units for result in results):
        return ""
    import matplotlib  # optional (extra `evaluate`)
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(12, 3.4 if swept else max(3.4, 1 + 0.3 * len(results))), layout="constrained")
        left, right = figure.subplots(1, 2)
        if swept:
            _draw_sweep(left, results, swept)
        else:
            rates, reach = _intervals(results)
            left.errorbar(rates, range(len(results)), xerr=reach, fmt="o", capsize=4)
            left.set_yticks(range(len(results)), [str(result.variant) for result in results])
            left.set(xlabel="WER %, 95 % interval", title="WER by decoder", ylim=(len(results) - 0.5, -0.5))
        _draw_lengths(right, results)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _draw_sweep(axes: "Axes", results: Sequence[RunResult], option: str) -> None:
    lines: dict[str, dict[str, RunResult]] = {}
    for result in results:
        decoder, _, value = str(result.variant).rpartition(f"{option}=")
        lines.setdefault(decoder.rstrip(":,"), {})[value] = result
    for decoder, points in lines.items():
        rates, reach = _intervals(list(points.values()))
        axes.errorbar(_numbers(list(points)), rates, yerr=reach, fmt="o-", capsize=4, label=decoder)
    axes.set(xlabel=option, ylabel="WER %, 95 % interval", title=f"WER by {option}")
    axes.legend()


def _numbers(values: list[str]) -> list[Any]:
    """The values as numbers, or as they are if one is a name."""
    try:
        return [float(value) for value in values]
    except ValueError:
        return values


def _intervals(results: Sequence[RunResult]) -> tuple[list[float], tuple[list[float], list[float]]]:
    """WER in percent, and how far the interval reaches below and above."""
    rates = [100 * (result.score.speech.words.rate or 0.0) for result in results]
    bounds = [result.score.speech.interval or (0.0, 0.0) for result in results]
    below = [max(rate - 100 * low, 0.0) for rate, (low, _) in zip(rates, bounds, strict=True)]
    return rates, (below, [max(100 * high - rate, 0.0) for rate, (_, high) in zip(rates, bounds, strict=True)])


def _draw_lengths(axes: "Axes", results: Sequence[RunResult]) -> None:
    best = sorted(results, key=lambda result: result.score.speech.words.rate or 0.0)[:_MAX_LINES]
    classes = [bounds for bounds in pairwise(_LENGTHS_S) if any(_words_within(each, *bounds) for each in best)]
    for result in (each for each in results if each in best):
        counts = [total(_words_within(result, *bounds)) for bounds in classes]
        rates = [float("nan") if count.rate is None else 100 * count.rate for count in counts]
        axes.plot(range(len(classes)), rates, "o-", label=str(result.variant))
    names = [f"{low:g} to {high:g} s\nn = {len(_words_within(best[0], low, high))}" for low, high in classes]
    axes.set_xticks(range(len(classes)), [name.replace("to inf", "or more") for name in names])
    shown = "" if len(best) == len(results) else f", the best {_MAX_LINES} of {len(results)}"
    axes.set(ylabel="WER %", title=f"WER by length{shown}", ylim=(0, None), xmargin=0.1)
    axes.legend()


def _words_within(result: RunResult, low_s: float, high_s: float) -> list[EditCounts]:
    pairs = zip(result.utterances, result.errors, strict=True)
    return [errors.words for each, errors in pairs if errors and errors.reference and low_s <= each.audio_s < high_s]
