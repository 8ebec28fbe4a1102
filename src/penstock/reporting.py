"""Parts of every report: hardware, software, date, percentiles, Markdown tables and the files to write."""

import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from penstock.errors import OutputError
from penstock.runtime import core_count, read_system_file

_SOURCES = Path(__file__).resolve().parent
PERCENTILE_NAMES = ("p50", "p95", "p99", "max")


def describe_hardware(device: str = "cpu") -> str:
    """The machine in words: "Intel Xeon at 2.5 GHz, 2 cores, 8 GiB", after the GPU's name if `device` is one."""
    cores, memory_gib = core_count(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    host = f"{cpu_name()}, {cores} core{'s' if cores > 1 else ''}, {memory_gib:.0f} GiB"
    if not device.startswith("cuda"):
        return host
    import torch

    return f"{torch.cuda.get_device_name(device)}; {host}"


def memory_size(size_bytes: float) -> str:
    """In units of 1,000: "1.25 GB", "537 MB", "1.5 MB"."""
    if size_bytes >= 1e9:
        return f"{size_bytes / 1e9:.2f} GB"
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes >= 1e7 else f"{size_bytes / 1e6:.1f} MB"


def cpu_name() -> str:
    """The processor's model, or its architecture if the system does not report a model."""
    lines = read_system_file(Path("/proc/cpuinfo")).splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str | None:
    """Commit of the sources of this package, marked if they have changes; None outside a repository."""
    try:
        name = _git("rev-parse", "--short", "HEAD")
        return f"{name} with changes" if _git("status", "--porcelain", ".") else name
    except (OSError, subprocess.CalledProcessError):
        return None


def date_utc() -> str:
    """The current time in minutes."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of the packages that are installed."""
    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_SOURCES), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def percentiles_ms(seconds: Sequence[float] | np.ndarray) -> dict[str, float]:
    """p50, p95, p99 and maximum in ms. Each is a measured value (between two, the higher one); NaN without values."""
    if not len(seconds):
        return dict.fromkeys(PERCENTILE_NAMES, float("nan"))
    # "higher", because inf has no mean
    percentiles_s = np.percentile(np.asarray(seconds, np.float64), [50, 95, 99, 100], method="higher")
    return dict(zip(PERCENTILE_NAMES, (1000 * percentiles_s).tolist(), strict=True))


def check_writable(path: Path, force: bool, flag: str = "--json") -> None:
    """Raises OutputError, before the work, if no file can be written there, or unless `force` if there is one."""
    try:
        if path.is_file() and not force:
            raise OutputError(f"{flag}: {path} exists; --force replaces it")
        if path.is_dir() or not path.absolute().parent.is_dir():
            reason = "is a directory" if path.is_dir() else f"there is no directory {path.absolute().parent}"
            raise OutputError(f"{flag}: {path}: {reason}")
        is_writable = os.access(path if path.exists() else path.absolute().parent, os.W_OK)
    except OSError as error:
        raise OutputError(f"{flag}: {path}: {error.strerror}") from error
    if not is_writable:
        raise OutputError(f"{flag}: {path}: cannot be written")


def write_report(path: Path, document: object, markdown: str | None = None) -> None:
    """Writes a document as JSON, and Markdown beside it; makes their folder. OutputError where it cannot."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(finite(document), indent=1, allow_nan=False, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")  # JSON's half surrogate pair
        if markdown is not None:
            path.with_suffix(".md").write_text(markdown.rstrip() + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from error


def finite(value: object) -> object:
    """Returns the value with None, JSON's null, in place of every number that is not finite."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]], left: int = 0) -> str:
    """Aligns the first `left` columns left, the others right; floats have three digits. No trailing newline."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(2, *map(len, column)) for column in zip(*cells, strict=True)]
    rule = ["-" * width if i < left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    return "\n".join(_line(row, widths, left) for row in (cells[0], rule, *cells[1:]))


def three_digits(value: float) -> str:
    """Three significant digits: 123, 12.3, 1.23."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _cell(value: object) -> str:
    return three_digits(value) if isinstance(value, float) else str(value)


def _line(cells: Sequence[str], widths: Sequence[int], left: int) -> str:
    aligned = (
        cell.ljust(width) if i < left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "| " + " | ".join(aligned) + " |"
