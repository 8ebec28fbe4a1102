"""The report of an evaluation as one HTML page without a network: plots, aligned errors and the recordings."""

import base64
import html
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import AudioError, OutputError
from penstock.evaluation.errors import UtteranceErrors
from penstock.evaluation.manifest import Utterance
from penstock.evaluation.plots import draw_plots
from penstock.evaluation.report import Conditions, summary_cells, summary_lines
from penstock.evaluation.runs import RunResult
from penstock.frontend.audio_file import read_audio

_TEMPLATE = Path(__file__).with_name("report.html")
_MAX_BYTES = 20_000_000
_SAMPLE_RATE_HZ = 16_000
_LEAST_BIT_RATE, _MOST_BIT_RATE = 6_000, 32_000
"""Of Opus, as libsndfile bounds it and as speech needs it."""
_BIT_RATES = 250_000
"""The range of bit rates of libsndfile's compression level, from 1.0 for the least to 0.0."""


def write_page(path: Path, conditions: Conditions, results: Sequence[RunResult], swept: str | None = None) -> list[str]:
    """Writes the page, of at most 20 MB; returns which recordings it lacks. swept: the option of a sweep.

    Where not all recordings fit, those with the most errors have them. Raises OutputError.
    """
    utterances = results[0].utterances
    header, rows = summary_cells(results)
    document: dict[str, Any] = {
        "columns": header,
        "recordings": [{"name": each.audio.name, "speaker": each.speaker, "s": each.audio_s} for each in utterances],
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
    text = text.replace("<!--plots-->", draw_plots(results, swept)).replace("<!--heading-->", heading)
    parts = (text, _script_json(document))  # texts of manifests may have half a surrogate pair
    left = _MAX_BYTES - sum(len(part.encode(errors="backslashreplace")) for part in parts)
    problems: list[str] = []
    for index, opus in _encode(utterances, _worst_first(results), left, problems):
        document["recordings"][index]["opus"] = opus
    try:
        path.write_text(text.replace('"DATA"', _script_json(document)), encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from error
    return problems


def _script_json(document: Any) -> str:
    """JSON that can stand in a script element, whatever its texts are."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _row(outcome: Any, errors: UtteranceErrors | None) -> dict:
    if errors is None:
        return {"error": outcome.error}
    aligned = [word if word == found else [word, found] for word, found in errors.aligned]
    return {"edits": errors.words.edits, "words": errors.words.reference_units, "aligned": aligned}


def _worst_first(results: Sequence[RunResult]) -> list[int]:
    errors = zip(*(result.errors for result in results), strict=True)
    edits = [sum(error.words.edits for error in of_all if error) for of_all in errors]
    return sorted(range(len(edits)), key=lambda index: -edits[index])


def _encode(
    utterances: Sequence[Utterance], order: Sequence[int], left: float, problems: list[str]
) -> Iterator[tuple[int, str]]:
    """Indices of utterances and their recordings in base64, as far as they fit into `left` bytes."""
    import soundfile

    fitting = 0.8 * left * 6 / max(sum(each.audio_s for each in utterances), 1.0)  # 6 of 8 bits, and Ogg's headers
    bit_rate = min(max(fitting, _LEAST_BIT_RATE), _MOST_BIT_RATE)
    level = 1 - (bit_rate - _LEAST_BIT_RATE) / _BIT_RATES
    gone, without_room = [], 0
    for index in order:
        file = io.BytesIO()
        try:
            if utterances[index].audio_s * _LEAST_BIT_RATE / 6 <= left:
                samples = read_audio(utterances[index].audio, _SAMPLE_RATE_HZ)
                soundfile.write(file, samples, _SAMPLE_RATE_HZ, "OPUS", format="OGG", compression_level=level)
        except AudioError as error:
            gone.append(error.message)
            continue
        opus = base64.b64encode(file.getvalue()).decode()
        if not opus or len(opus) > left:
            without_room += 1
            continue
        left -= len(opus) + len(',"opus":""')
        yield index, opus
    if gone:
        problems.append(f"{len(gone)} of {len(order)} recordings cannot be read; the first: {gone[0]}")
    if without_room:
        problems.append(f"{without_room} of {len(order)} recordings do not fit into {_MAX_BYTES // 10**6} MB")
