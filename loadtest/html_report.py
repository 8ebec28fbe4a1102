"""The report document (report.py) as one HTML file with its plots inside."""

import base64
import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from loadtest import plots
from loadtest.report import finite, number, window_lines
from penstock.errors import OutputError

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1080px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: .6em 0 1.4em; font-variant-numeric: tabular-nums }
th, td { padding: .2em .7em; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
th { font-weight: 600; border-bottom: 2px solid #999 } .scroll { overflow-x: auto } img { max-width: 100% }
pre { white-space: pre-wrap; background: #f6f6f6; padding: .8em }
"""
_STREAMS_HEADER = (
    "streams", "", "s", "chunks", "late", "chunk p50", "p95", "p99 ms", "end to final p50", "p95", "p99 ms",
    "RTFx", "WER %", "rejected", "failed", "lag p99 ms",
)  # fmt: skip
_MODELS_HEADER = (
    "streams, model", "requests", "batch", "batches per s", "queue ms", "compute ms", "input", "inference",
    "output", "M/D/1 utilization", "M/D/1 queue ms",
)  # fmt: skip


def write_html(path: Path, document: dict) -> None:
    """Writes the report. OutputError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(document), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from error


def render(document: dict) -> str:
    """Returns the whole page."""
    document = finite(document)
    windows = document["windows"]
    parts = [
        "<h1>Load test</h1>",
        _capacity(document["capacity"]) if "capacity" in document else "",
        _section("Soak", _lines(document["soak"]["lines"])) if "soak" in document else "",
        _section("Results", _lines([line for window in windows for line in window_lines(window)])),
        _section("Streams", _table(_STREAMS_HEADER, map(_streams_row, windows))),
        _section("Plots", _plots(windows)),
        _section("Models", _models(windows)),
        _section("Processes", _processes(windows)),
        _section("Circumstances", _facts(document)),
    ]
    head = f'<meta charset="utf-8"><title>Penstock load test</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{chr(10).join(parts)}\n</body></html>\n'


def _streams_row(window: dict) -> list[object]:
    wer = window["words"]["wer"]
    return [
        f"{window['streams']:g}", "pass" if window["passed"] else "FAIL", number(window["seconds"]),
        window["chunks"], window["late_chunks"],
        *(number(window["chunk_latency_ms"][name]) for name in ("p50", "p95", "p99")),
        *(number(window["final_latency_ms"][name]) for name in ("p50", "p95", "p99")),
        number(window["rtfx"], 1), number(None if wer is None else 100 * wer, 1),
        window["rejections"]["count"], window["errors"]["count"], number(window["generator"]["lag_ms"]["p99"], 1),
    ]  # fmt: skip


def _models(windows: list[dict]) -> str:
    fields = ("batch", "batches_per_s", "queue_ms", "compute_ms", "input_ms", "infer_ms", "output_ms")
    rows = [
        [
            f"{window['streams']:g} {name}",
            number(times["requests"]),
            *(number(times[field], 1) for field in fields),
            number(times["predicted_utilization"], 2),
            number(times["predicted_queue_ms"], 1),
        ]
        for window in windows
        for name, times in window["models"].items()
    ]
    note = "<p>Means over requests; each counts the whole time of its batch.</p>"
    return note + _table(_MODELS_HEADER, rows) if rows else "<p>Not measured.</p>"


def _processes(windows: list[dict]) -> str:
    rows = []
    for window in windows:
        for name, use in window["machine"]["processes"].items():
            sizes = [number(use[field], 1) for field in ("pss_mib", "pss_growth_mib")]
            rows.append([f"{window['streams']:g} {name}", number(use["cores"], 2), *sizes])
        rows.append([f"{window['streams']:g} others", number(window["machine"]["other_cores"], 2), "", ""])
    return _table(("streams, process", "cores", "PSS MiB", "PSS growth MiB"), rows)


def _plots(windows: list[dict]) -> str:
    texts = [plots.latency_plot(windows)]
    if all(window["models"] for window in windows):
        texts.append(plots.queue_plot(windows))
    if all(window["split_ms"] for window in windows):
        texts.append(plots.split_plot(windows))
    encoded = (base64.b64encode(text.encode()).decode() for text in texts)
    return "\n".join(f'<img alt="" src="data:image/svg+xml;base64,{text}">' for text in encoded)


def _capacity(capacity: dict) -> str:
    rows = [
        [trial["streams"], number(trial["seconds"]), "pass" if trial["passed"] else "FAIL", "; ".join(trial["reasons"])]
        for trial in capacity["trials"]
    ]
    table = _table(("streams", "s", "", "why not"), rows)
    return _section("Capacity", f"<p><b>{_escape(capacity['text'])}</b></p>{table}")


def _facts(document: dict) -> str:
    facts = {**document["circumstances"], **document["server"], **document["options"]}
    rows = [[name.replace("_", " "), value] for name, value in facts.items() if value not in (None, "", [], {})]
    return _table(("", ""), rows)


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>\n{content}"


def _lines(lines: Sequence[str]) -> str:
    return f"<pre>{_escape(chr(10).join(lines))}</pre>"


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{_escape(title)}</th>" for title in header)
    body = "\n".join("<tr>" + "".join(f"<td>{_escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>\n{body}</table></div>'


def _escape(value: object) -> str:
    return html.escape(str(value))
