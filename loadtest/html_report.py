"""The report as one HTML file with its plots inside. Knows only the document that json_report.py makes."""

import base64
import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from loadtest import plots
from loadtest.json_report import finite
from loadtest.soak_verdict import soak_lines
from loadtest.verdict_lines import number, verdict_lines
from penstock.errors import PenstockError

MISSING_MATPLOTLIB = "The plots are missing: this was written where matplotlib is not installed (extra `loadtest`)."

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1080px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: .6em 0 1.4em; font-variant-numeric: tabular-nums }
th, td { padding: .2em .7em; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
th { font-weight: 600; border-bottom: 2px solid #999 } .scroll { overflow-x: auto } img { max-width: 100% }
pre { white-space: pre-wrap; background: #f6f6f6; padding: .8em } .missing { color: #a00 }
"""

Rows = Iterable[Sequence[object]]


def write_html(path: Path, document: dict) -> None:
    """Writes the report. PenstockError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(document), encoding="utf-8")
    except OSError as error:
        raise PenstockError(f"{path}: {error.strerror}") from error


def render(document: dict) -> str:
    """The whole page. Without matplotlib it says so where the plots would be."""
    document = finite(document)
    windows = document["windows"]
    parts = [
        "<h1>Load test</h1>",
        _capacity(document.get("capacity")),
        _soak(document.get("soak")),
        _section("Verdicts", f"<pre>{_escape(chr(10).join(line for w in windows for line in verdict_lines(w)))}</pre>"),
        _section("Streams", _table(_STREAMS_HEADER, map(_streams_row, windows))),
        _section("Plots", _plots(windows)),
        _section("Members", _members(windows)),
        _section("Processes", _processes(windows)),
        _section("Circumstances", _facts(document)),
    ]
    head = f'<meta charset="utf-8"><title>Penstock load test</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{chr(10).join(parts)}\n</body></html>\n'


_STREAMS_HEADER = (
    "streams", "", "s", "chunks", "late", "chunk p50", "p95", "p99 ms", "end to final p50", "p95", "p99 ms",
    "RTFx", "WER %", "refused", "failed", "lag p99 ms",
)  # fmt: skip


def _streams_row(window: dict) -> list[object]:
    wer = window["words"]["wer"]
    return [
        f"{window['streams']:g}", "pass" if window["passed"] else "FAIL", number(window["seconds"]),
        window["chunks"], window["late_chunks"],
        *(number(window["chunk_latency_ms"][name]) for name in ("p50", "p95", "p99")),
        *(number(window["final_latency_ms"][name]) for name in ("p50", "p95", "p99")),
        number(window["rtfx"], 1), number(None if wer is None else 100 * wer, 1),
        window["refusals"]["count"], window["errors"]["count"], number(window["generator"]["lag_ms"]["p99"], 1),
    ]  # fmt: skip


def _members(windows: list[dict]) -> str:
    header = (
        "streams, member", "requests", "batch", "batches a second", "queue ms", "compute ms", "input", "inference",
        "output", "M/D/1 utilisation", "M/D/1 queue ms",
    )  # fmt: skip
    rows = [
        [
            f"{window['streams']:g} {name}", number(times["requests"]), number(times["batch"], 1),
            number(times["batches_per_s"], 1), number(times["queue_ms"], 1), number(times["compute_ms"], 1),
            *(number(times[part], 1) for part in ("input_ms", "infer_ms", "output_ms")),
            number(times["predicted_utilisation"], 2), number(times["predicted_queue_ms"], 1),
        ]
        for window in windows
        for name, times in window["members"].items()
    ]  # fmt: skip
    note = "<p>Means over requests, each of which counts the whole time of its batch.</p>"
    return note + _table(header, rows) if rows else "<p>Not measured.</p>"


def _processes(windows: list[dict]) -> str:
    header = ("streams, process", "cores", "RSS MiB", "PSS MiB", "PSS growth MiB")
    rows: list[list[object]] = []
    for window in windows:
        machine = window["machine"]
        for name, share in machine["processes"].items():
            sizes = [number(share[field], 1) for field in ("rss_mib", "pss_mib", "pss_growth_mib")]
            rows.append([f"{window['streams']:g} {name}", number(share["cores"], 2), *sizes])
        rows.append([f"{window['streams']:g} others", number(machine["other_cores"], 2), "", "", ""])
        rows.append([f"{window['streams']:g} taken by the host", number(machine.get("stolen_cores"), 2), "", "", ""])
    return _table(header, rows)


def _plots(windows: list[dict]) -> str:
    try:
        texts = [plots.latency_plot(windows)]
        if all(window["members"] for window in windows):
            texts += [plots.queue_plot(windows), plots.prediction_plot(windows)]
        if all(window["split_ms"] for window in windows):
            texts.append(plots.split_plot(windows))
    except ImportError:
        return f'<p class="missing">{MISSING_MATPLOTLIB}</p>'
    encoded = (base64.b64encode(text.encode()).decode() for text in texts)
    return "\n".join(f'<img alt="" src="data:image/svg+xml;base64,{text}">' for text in encoded)


def _capacity(capacity: dict | None) -> str:
    if capacity is None:
        return ""
    rows = [
        [trial["streams"], number(trial["seconds"]), "pass" if trial["passed"] else "FAIL", "; ".join(trial["reasons"])]
        for trial in capacity["trials"]
    ]
    table = _table(("streams", "s", "", "why not"), rows)
    return _section("Capacity", f"<p><b>{_escape(capacity['text'])}</b></p>{table}")


def _soak(soak: dict | None) -> str:
    return "" if soak is None else _section("Soak", f"<pre>{_escape(chr(10).join(soak_lines(soak)))}</pre>")


def _facts(document: dict) -> str:
    facts = {**document["circumstances"], **document["server"], **document["options"]}
    rows = [[name.replace("_", " "), value] for name, value in facts.items() if value not in (None, "", [], {})]
    return _table(("", ""), rows)


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>\n{content}"


def _table(header: Sequence[str], rows: Rows) -> str:
    head = "".join(f"<th>{_escape(title)}</th>" for title in header)
    body = "\n".join("<tr>" + "".join(f"<td>{_escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>\n{body}</table></div>'


def _escape(value: object) -> str:
    return html.escape(str(value))
