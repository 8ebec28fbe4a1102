"""The report of an evaluation as one HTML page without a network: plots, aligned errors and the recordings.

Plots are one SVG: WER by decoder, or by a swept option, and WER by the length of recordings.
"""

import base64
import html
import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import AudioError, OutputError
from penstock.evaluation.errors import EditCounts, UtteranceErrors, total
from penstock.evaluation.manifest import Utterance
from penstock.evaluation.report import Conditions, summary_cells, summary_lines
from penstock.evaluation.runs import RunResult
from penstock.frontend.audio_file import AudioSource
from penstock.transcription.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes

_TEMPLATE = Path(__file__).with_name("report.html")
_MAX_BYTES = 20_000_000
_SAMPLE_RATE_HZ = 16_000
_LEAST_BIT_RATE, _MOST_BIT_RATE = 6_000, 32_000
"""Bits per second of Opus: speech is intelligible at the one, and as good as in the file at the other."""
_EFFORT = "5"
"""libopus's complexity: its default, 10, takes twice the time for the same size."""
_LENGTHS_S = (0.0, 2.0, 5.0, 10.0, 20.0, 60.0, float("inf"))
_MAX_LINES = 6
"""More lines in one plot cannot be told apart."""
_STYLE: Any = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": "#e4e4e4", "legend.frameon": False, "svg.fonttype": "none", "svg.hashsalt": "penstock",
}  # fmt: skip


def write_page(path: Path, conditions: Conditions, results: Sequence[RunResult], swept: str | None = None) -> list[str]:
    """Writes the page, of at most 20 MB; returns which recordings it lacks. swept: the option of a sweep.

    Where not all recordings fit, those with the most errors have them. Raises OutputError.
    """
    utterances = results[0].utterances
    header, rows = summary_cells(results)
    document: dict[str, Any] = {
        "columns": header,
        "recordings": [
            {"name": each.audio.name + each.part.label, "speaker": each.speaker, "s": each.audio_s}
            for each in utterances
        ],
        "runs": [
            {
                "name": str(result.variant),
                "cells": row,
                "utterances": [_row(*each) for each in zip(result.outcomes, result.errors, strict=True)],
            }
            for result, row in zip(results, rows, strict=True)
        ],
    }
    text = _TEMPLATE.read_text(encoding="utf-8")
    heading = "".join(f"<p>{html.escape(line)}</p>" for line in summary_lines(conditions, results[0]))
    text = text.replace("<!--plots-->", _draw_plots(results, swept)).replace("<!--heading-->", heading)
    parts = (text, _script_json(document))  # texts of manifests may have half a surrogate pair
    left = _MAX_BYTES - sum(len(part.encode(errors="backslashreplace")) for part in parts)
    problems: list[str] = []
    errors = zip(*(result.errors for result in results), strict=True)
    edits = [sum(error.words.edits for error in of_all if error) for of_all in errors]
    worst_first = sorted(range(len(edits)), key=lambda index: -edits[index])
    for index, opus in _encode(utterances, worst_first, left, problems):
        document["recordings"][index]["opus"] = opus
    try:
        path.write_text(text.replace('"DATA"', _script_json(document)), encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from error
    return problems


def _draw_plots(results: Sequence[RunResult], swept: str | None = None) -> str:
    """An SVG element; "" without speech. swept: the option of a sweep."""
    if not all(result.score.speech.words.reference_units for result in results):
        return ""
    import matplotlib  # optional (extra `evaluate`)
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        height = max(3.4, 1 + 0.3 * (0 if swept else len(results))) + 0.25 * min(len(results), _MAX_LINES)
        figure = Figure(figsize=(12, height), layout="constrained")
        left, right = figure.subplots(1, 2)
        if swept:
            _draw_sweep(left, results, swept)
        else:
            rates, reach = _intervals(results)
            left.errorbar(rates, range(len(results)), xerr=reach, fmt="o", capsize=4)
            left.set_yticks(range(len(results)), [str(result.variant) for result in results])
            left.set(xlabel="WER %, 95 % interval", title="WER by decoder", ylim=(len(results) - 0.5, -0.5))
        _draw_lengths(right, results)
        figure.legend(*right.get_legend_handles_labels(), loc="outside lower right")  # a name is as long as a plot
        if swept:
            figure.legend(*left.get_legend_handles_labels(), loc="outside lower left")
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


def _words_within(result: RunResult, low_s: float, high_s: float) -> list[EditCounts]:
    pairs = zip(result.utterances, result.errors, strict=True)
    return [errors.words for each, errors in pairs if errors and errors.reference and low_s <= each.audio_s < high_s]


def _script_json(document: Any) -> str:
    """JSON that can stand in a script element, whatever its texts are."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _row(outcome: Any, errors: UtteranceErrors | None) -> dict:
    if errors is None:
        return {"error": outcome.error}
    aligned = [word if word == found else [word, found] for word, found in errors.aligned]
    remarks = {"remarks": outcome.remarks} if outcome.remarks else {}
    return {"edits": errors.words.edits, "words": errors.words.reference_units, "aligned": aligned, **remarks}


def _encode(
    utterances: Sequence[Utterance], order: Sequence[int], left: float, problems: list[str]
) -> Iterator[tuple[int, str]]:
    """Indices of utterances and their recordings in base64, as far as they fit into `left` bytes.

    Shows the progress if stderr is a terminal.
    """
    audio_s = sum(each.audio_s for each in utterances)
    fitting = 0.8 * left * 6 / max(audio_s, 1.0)  # 6 of 8 bits, and Ogg's headers
    bit_rate = round(min(max(fitting, _LEAST_BIT_RATE), _MOST_BIT_RATE))
    if fitting >= _LEAST_BIT_RATE:  # all have room, so a file is decoded once for its parts
        order = sorted(order, key=lambda index: (utterances[index].part.path, utterances[index].part.begin_s))
    import av.error  # optional (extra `media`)

    gone, without_room = [], 0
    with (
        Progress(sys.stderr, len(order), audio_s, "recordings", "report") as progress,
        closing(AudioSource(_SAMPLE_RATE_HZ)) as source,
    ):
        for index in progress.count(order):
            opus, seconds = "", utterances[index].audio_s
            try:
                if seconds * _LEAST_BIT_RATE / 6 <= left:
                    samples = source.read(utterances[index].part)
                    if not len(samples):  # too short for a sample at this rate
                        continue
                    opus = base64.b64encode(_opus(samples, bit_rate)).decode()
            except AudioError as error:
                gone.append(error.message)
                continue
            except (av.error.FFmpegError, ValueError) as error:
                gone.append(f"{utterances[index].part}: {error}")
                continue
            progress.add_audio(seconds)
            if not opus or len(opus) > left:
                without_room += 1
                continue
            left -= len(opus) + len(',"opus":""')
            yield index, opus
    if gone:
        problems.append(f"{len(gone)} of {len(order)} recordings cannot be read; the first: {gone[0]}")
    if without_room:
        problems.append(f"{without_room} of {len(order)} recordings do not fit into {_MAX_BYTES // 10**6} MB")


def _opus(samples: "np.ndarray", bit_rate: int) -> bytes:
    """An Ogg file; samples: [n] at `_SAMPLE_RATE_HZ`."""
    import av  # optional (extra `media`)

    file = io.BytesIO()
    with av.open(file, "w", format="ogg") as out:
        options = {"compression_level": _EFFORT, "application": "voip"}
        stream = out.add_stream("libopus", rate=_SAMPLE_RATE_HZ, layout="mono", options=options)
        stream.bit_rate = bit_rate
        frame = av.AudioFrame.from_ndarray(samples[None], "flt", "mono")
        frame.sample_rate, frame.pts = _SAMPLE_RATE_HZ, 0  # without a time, that of the file's end is wrong
        for packet in (*stream.encode(frame), *stream.encode(None)):
            out.mux(packet)
    return file.getvalue()
