"""The report as JSON, Markdown and text lines. docs/load_testing.md documents the fields."""

import os
import shlex
import sys
from pathlib import Path

from loadtest.options import STREAMING_OPTIONS
from penstock import reporting
from penstock.errors import OutputError
from penstock.reporting import commit, date_utc, describe_hardware, finite, markdown_table, package_versions
from penstock.version import __version__

REPORT = "loadtest.json"
"""In the folder of --out."""

FORMAT, FORMAT_VERSION = "penstock-loadtest", 3
_PACKAGES = ("locust", "gevent", "grpcio", "tritonclient", "numpy")
_OPTIONS = ("streams", "minutes", "stagger_seconds", "chunk_ms", "processes", *STREAMING_OPTIONS)

_STREAMS_HEADER = (
    "streams", "", "s", "chunks", "late", "chunk p50", "p95", "p99 ms", "end to final p50", "p95", "p99 ms",
    "RTFx", "WER %", "rejected", "failed", "lag p99 ms",
)  # fmt: skip
_MODEL_FIELDS = (
    "requests", "batch", "batches_per_s", "queue_ms", "compute_ms", "input_ms", "infer_ms", "output_ms",
    "predicted_utilization", "predicted_queue_ms",
)  # fmt: skip


def make_folder(path: Path) -> None:
    """Creates the report's folder. OutputError where it cannot be written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"--out: {path}: {error.strerror}") from error
    if not os.access(path, os.W_OK):
        raise OutputError(f"--out: {path}: cannot be written to")


def report_document(options: dict, setup: dict, windows: list[dict]) -> dict:
    """Returns the report of one test; `setup`: "command" and "server", as far as they are known."""
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "penstock": __version__,
        "circumstances": {
            "date": date_utc(),
            "hardware": describe_hardware(),
            "commit": commit(),
            "command": setup.get("command") or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "load_average": os.getloadavg()[0],
            "packages": package_versions(_PACKAGES),
        },
        "server": setup.get("server", {}),
        "options": {name: options[name] for name in _OPTIONS if name in options},
        "windows": windows,
    }


def write_report(path: Path, document: dict) -> None:
    """Writes the report as JSON and beside it as Markdown. OutputError where it cannot be written."""
    reporting.write_report(path, document, to_markdown(document))


def to_markdown(document: dict) -> str:
    """The report: its result in one sentence, then every table."""
    document = finite(document)
    windows = document["windows"]
    facts = {**document["circumstances"], **document["server"], **document["options"]}
    title = f"# Load test: {'passed' if _has_passed(document) else 'not passed'}"
    sections = {
        title: "\n".join(["```", *_result_lines(document), "```"]),
        "## Trials": _trials(document["capacity"]) if "capacity" in document else "",
        "## Streams": markdown_table(_STREAMS_HEADER, map(_streams_row, windows)),
        "## Models": markdown_table(("streams", "model", *_MODEL_FIELDS), _model_rows(windows), left=2),
        "## Processes": markdown_table(
            ("streams", "process", "cores", "PSS MiB", "growth MiB"), _process_rows(windows), left=2
        ),
        "## Circumstances": markdown_table(
            ("", ""), [(name, value) for name, value in facts.items() if value not in (None, "", [], {})], left=2
        ),
    }
    return "\n\n".join(f"{head}\n\n{text}" for head, text in sections.items() if text)


def _has_passed(document: dict) -> bool:
    """Says whether the test has passed, as the command's exit status."""
    if "capacity" in document:
        return document["capacity"]["streams"] > 0
    return all(window["passed"] for window in document["windows"]) and document.get("soak", {}).get("passed", True)


def _streams_row(window: dict) -> list[object]:
    wer = window["words"]["wer"]
    return [
        f"{window['streams']:g}",
        "pass" if window["passed"] else "FAIL",
        number(window["seconds"]),
        window["chunks"],
        window["late_chunks"],
        *(number(window["chunk_latency_ms"][name]) for name in ("p50", "p95", "p99")),
        *(number(window["final_latency_ms"][name]) for name in ("p50", "p95", "p99")),
        number(window["rtfx"], 1),
        number(None if wer is None else 100 * wer, 1),
        window["rejections"]["count"],
        window["errors"]["count"],
        number(window["generator"]["lag_ms"]["p99"], 1),
    ]


def _model_rows(windows: list[dict]) -> list[list[object]]:
    return [
        [f"{window['streams']:g}", name, *(number(times[field], 1) for field in _MODEL_FIELDS)]
        for window in windows
        for name, times in window["models"].items()
    ]


def _process_rows(windows: list[dict]) -> list[list[object]]:
    rows: list[list[object]] = []
    for window in windows:
        streams = f"{window['streams']:g}"
        for name, use in window["machine"]["processes"].items():
            sizes = [number(use[field], 1) for field in ("pss_mib", "pss_growth_mib")]
            rows.append([streams, name, number(use["cores"], 2), *sizes])
        rows.append([streams, "others", number(window["machine"]["other_cores"], 2), "", ""])
    return rows


def _trials(capacity: dict) -> str:
    rows = [
        (trial["streams"], number(trial["seconds"]), "pass" if trial["passed"] else "FAIL", "; ".join(trial["reasons"]))
        for trial in capacity["trials"]
    ]
    return markdown_table(("streams", "s", "", "reasons"), rows)


def _result_lines(document: dict) -> list[str]:
    """The capacity, the result of a soak, then that of each window."""
    capacity = [document["capacity"]["text"]] if "capacity" in document else []
    soak = document["soak"]["lines"] if "soak" in document else []
    return [*capacity, *soak, *(line for window in document["windows"] for line in window_lines(window))]


def in_words(streams: float) -> str:
    """The number of streams."""
    return f"{streams:g} stream{'s' if streams != 1 else ''}"


def window_lines(window: dict) -> list[str]:
    """Returns a window's result: passed or why not, the check of the load generator, CPU steal."""
    words = window["words"]
    wer = "no words" if words["wer"] is None else f"WER {100 * words['wer']:.1f} %"
    lines = [
        f"{in_words(window['streams'])} {'PASS' if window['passed'] else 'FAIL'}: "
        f"{window['late_chunks']} of {window['chunks']} chunks late, "
        f"end to final {_percentiles(window['final_latency_ms'])} ms, "
        f"chunk {_percentiles(window['chunk_latency_ms'])} ms (p50/p95/p99), RTFx {window['rtfx']:.1f}, {wer}, "
        f"{window['rejections']['count']} rejected, {window['errors']['count']} failed"
    ]
    lines += [f"  because: {reason}" for reason in window["reasons"]]
    if (per_core := window["streams_per_server_core"]) is not None:
        lines.append(
            f"  {number(per_core)} streams per server core, {window['machine']['server_cores']:.2f} cores used"
        )
    if (gateway_us := window["gateway_us_per_100_ms"]) is not None:
        lines.append(f"  {number(gateway_us)} us of CPU time of the gateway per 100 ms of audio")
    lines.append(f"  {window['generator']['text']}")
    if window["metrics_problem"]:
        lines.append(f"  no queue and compute times: {window['metrics_problem']}")
    return [*lines, f"  CPU steal {number(window['machine']['steal_percent'], 1)} %"]


def number(value: float | None, digits: int = 0) -> str:
    """Formats a figure; a dash where nothing was measured or the answer never came."""
    is_known = value is not None and abs(value) < float("inf")  # false for NaN too
    return f"{value:.{digits}f}" if is_known else "-"


def _percentiles(values: dict) -> str:
    return "/".join(number(values[name]) for name in ("p50", "p95", "p99"))
