"""The report as JSON and as text lines. docs/load_testing.md documents the fields."""

import json
import math
import os
import shlex
import sys
from pathlib import Path

from loadtest.options import STREAMING_OPTIONS
from penstock.errors import OutputError
from penstock.reporting import commit, date_utc, describe_hardware, package_versions
from penstock.version import __version__

FORMAT, FORMAT_VERSION = "penstock-loadtest", 3
_PACKAGES = ("locust", "gevent", "grpcio", "tritonclient", "numpy")
_OPTIONS = ("shape", "streams", "minutes", "stagger_seconds", "chunk_ms", "processes", *STREAMING_OPTIONS)


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


def write_json(path: Path, document: dict) -> None:
    """Writes the report and creates its folder; infinite and NaN become null, which JSON lacks."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(finite(document), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from error


def finite(value: object) -> object:
    """Returns the value with None in place of every number that is not finite."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def summary_sentence(document: dict) -> str:
    """Returns the result in one sentence: what passed with which latency, or the first load that failed and why."""
    if "capacity" in document:
        return _capitalized(document["capacity"]["text"])
    windows = sorted(document["windows"], key=lambda window: window["streams"])
    passed = [window for window in windows if window["passed"]]
    failed = next((window for window in windows if not window["passed"]), None)
    sentence = ""
    if passed:
        most = passed[-1]
        sentence = (
            f"{_streams(most)} ran in real time for {most['seconds']:.0f} s: half of the words came within "
            f"{number(most['chunk_latency_ms']['p50'])} ms of their chunk, 95 % within "
            f"{number(most['chunk_latency_ms']['p95'])} ms, and 95 % of the final texts within "
            f"{number(most['final_latency_ms']['p95'])} ms of the end of the audio"
        )
    if failed:
        reasons = "; ".join(failed["reasons"])
        sentence += f"{'; but ' if sentence else ''}{_streams(failed)} did not pass: {reasons}"
    if "soak" in document and not document["soak"]["passed"]:
        sentence += f"; the soak did not pass: {'; '.join(document['soak']['reasons'])}"
    return f"{sentence}."


def _streams(window: dict) -> str:
    return f"{window['streams']:g} stream{'s' if window['streams'] != 1 else ''}"


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def window_lines(window: dict) -> list[str]:
    """Returns a window's result: passed or why not, the check of the load generator, bottlenecks, CPU steal."""
    words = window["words"]
    wer = "no words" if words["wer"] is None else f"WER {100 * words['wer']:.1f} %"
    lines = [
        f"{window['streams']:g} streams {'PASS' if window['passed'] else 'FAIL'}: "
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
    lines.append(f"  {window['generator']['text']}")
    for found in window["bottlenecks"]:
        why = "" if found["text"] == window["generator"]["text"] else f" ({found['text']})"
        lines.append(f"  bottleneck: {found['resource']}{why}")
    if window["metrics_problem"]:
        lines.append(f"  no queue and compute times: {window['metrics_problem']}")
    return [*lines, f"  CPU steal {number(window['machine']['steal_percent'], 1)} %"]


def number(value: float | None, digits: int = 0) -> str:
    """Formats a figure; a dash where nothing was measured or the answer never came."""
    is_known = value is not None and abs(value) < float("inf")  # false for NaN too
    return f"{value:.{digits}f}" if is_known else "-"


def _percentiles(values: dict) -> str:
    return "/".join(number(values[name]) for name in ("p50", "p95", "p99"))
