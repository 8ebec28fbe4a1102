"""The report document (report.py) as one HTML file with its plots inside."""

import base64
import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from loadtest import plots
from loadtest.report import finite, number, summary_sentence, window_lines
from penstock.errors import OutputError

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 2.5em auto; padding: 0 1.2em; color: #1f2933 }
h1 { font-size: 1.5em; margin: 0 } h2 { font-size: 1.1em; margin: 2.2em 0 .4em; color: #52606d }
.summary { font-size: 1.25em; line-height: 1.4; margin: .8em 0 1.2em }
.verdict { display: inline-block; padding: .05em .7em; border-radius: 1em; color: #fff; font-size: .75em;
  vertical-align: middle; margin-left: .8em } .pass { background: #2f8f5b } .fail { background: #b8433f }
.tiles { display: flex; flex-wrap: wrap; gap: .8em } .tile { flex: 1 1 120px; padding: .7em .9em; border-radius: .5em;
  background: #f3f5f7 } .tile b { display: block; font-size: 1.5em; font-weight: 600 } .tile span { color: #52606d }
.about { color: #52606d; margin: 0 }
table { border-collapse: collapse; margin: .6em 0 1.4em; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { padding: .2em .7em; text-align: right; border-bottom: 1px solid #e4e7eb; vertical-align: top }
th:first-child, td:first-child { text-align: left } .facts td { text-align: left }
th { font-weight: 600; border-bottom: 2px solid #9aa5b1 } .scroll { overflow-x: auto } img { width: 100% }
pre { white-space: pre-wrap; background: #f3f5f7; padding: .8em; border-radius: .5em; font-size: 13px }
@media print { body { margin: 0; font-size: 12px } }
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
    """Returns the whole page: the result on top, then plots, then every figure."""
    document = finite(document)
    windows = document["windows"]
    parts = [
        _result(document),
        _section("Plots", _plots(windows)),
        _capacity(document["capacity"]) if "capacity" in document else "",
        _section("Soak", _lines(document["soak"]["lines"])) if "soak" in document else "",
        _section("Checks", _lines([line for window in windows for line in window_lines(window)])),
        _section("Streams", _table(_STREAMS_HEADER, map(_streams_row, windows))),
        _section("Models", _models(windows)),
        _section("Processes", _processes(windows)),
        _section("Circumstances", _facts(document)),
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Penstock load test</title><style>{_STYLE}</style>"
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{chr(10).join(parts)}\n</body></html>\n'


def _result(document: dict) -> str:
    """The heading with pass or fail, the summary, what was tested, and the figures of the largest load that passed."""
    windows = document["windows"]
    has_passed = _has_passed(document)
    verdict = (
        f'<span class="verdict {"pass" if has_passed else "fail"}">{"passed" if has_passed else "not passed"}</span>'
    )
    server, circumstances = document["server"], document["circumstances"]
    about = (server.get("model"), server.get("context"), circumstances["hardware"], circumstances["date"])
    passed = [window for window in windows if window["passed"]]
    shown = max(passed or windows, key=lambda window: window["streams"])
    return "\n".join([
        f"<h1>Load test{verdict}</h1>",
        f'<p class="summary">{_escape(summary_sentence(document))}</p>',
        f'<p class="about">{_escape(" · ".join(str(fact) for fact in about if fact))}</p>',
        f"<h2>At {shown['streams']:g} streams</h2>",
        f'<div class="tiles">{"".join(map(_tile, _key_figures(shown)))}</div>',
    ])  # fmt: skip


def _has_passed(document: dict) -> bool:
    """As the command's exit status says."""
    if "capacity" in document:
        return document["capacity"]["streams"] > 0
    return all(window["passed"] for window in document["windows"]) and document.get("soak", {}).get("passed", True)


def _key_figures(window: dict) -> list[tuple[str, str]]:
    wer = window["words"]["wer"]
    return [
        (f"{number(window['chunk_latency_ms']['p50'])} ms", "chunk to words, p50"),
        (f"{number(window['chunk_latency_ms']['p95'])} ms", "chunk to words, p95"),
        (f"{number(window['final_latency_ms']['p95'])} ms", "end to final text, p95"),
        (f"{100 * window['late_share']:.2f} %", "late chunks"),
        (f"{window['rejections']['count'] + window['errors']['count']}", "streams rejected or failed"),
        ("-" if wer is None else f"{100 * wer:.1f} %", "word error rate"),
    ]


def _tile(figure: tuple[str, str]) -> str:
    value, name = figure
    return f'<div class="tile"><b>{_escape(value)}</b><span>{_escape(name)}</span></div>'


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
    encoded = (base64.b64encode(text.encode()).decode() for text in plots.draw_all(windows))
    return "\n".join(f'<img alt="" src="data:image/svg+xml;base64,{text}">' for text in encoded)


def _capacity(capacity: dict) -> str:
    rows = [
        [trial["streams"], number(trial["seconds"]), "pass" if trial["passed"] else "FAIL", "; ".join(trial["reasons"])]
        for trial in capacity["trials"]
    ]
    return _section("Trials", _table(("streams", "s", "", "why not"), rows))


def _facts(document: dict) -> str:
    facts = {**document["circumstances"], **document["server"], **document["options"]}
    rows = [[name.replace("_", " "), value] for name, value in facts.items() if value not in (None, "", [], {})]
    return f'<div class="facts">{_table(("", ""), rows)}</div>'


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
