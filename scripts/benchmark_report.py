"""What the benchmarks share: the machine they ran on, tables, result files, progress on stderr."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("torch", "numpy", "nemo_toolkit", "sherpa-onnx", "tritonclient", "nvidia-pytriton")


def machine(threads: int) -> dict[str, object]:
    """Where, when and with what a benchmark ran. `threads` are those of one process."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "threads": threads,
        "load_average_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
    }


def describe(where: dict) -> str:
    """One line of Markdown."""
    packages = ", ".join(f"{name} {found}" for name, found in where["packages"].items())
    return (
        f"{where['cpu']}, {where['cores']} cores, {where['threads']} thread{'s' * (where['threads'] != 1)} a process; "
        f"{packages}; {where['date']}, commit {where['commit']}, load before {where['load_average_before']:.1f}"
    )


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table that also reads well on a terminal; numbers to the right."""
    cells = [list(map(_cell, row)) for row in rows]
    widths = [max(len(title), *(len(row[i]) for row in cells), 2) for i, title in enumerate(header)]
    lines = [_line(header, widths), _line(["-" * (width - 1) + ":" for width in widths], widths)]
    return "\n".join(lines + [_line(row, widths) for row in cells])


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99 and the largest; NaN without values."""
    if not len(values):
        return dict.fromkeys(("p50", "p95", "p99", "max"), float("nan"))
    found = np.percentile(values, [50, 95, 99, 100], method="higher")  # defined for infinite values
    return dict(zip(("p50", "p95", "p99", "max"), map(float, found), strict=True))


def publish(markdown: str, document: dict, json_path: Path | None) -> None:
    """Prints a result; with a path also writes it there as JSON, and as Markdown beside it."""
    print(markdown, flush=True)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        json_path.with_suffix(".md").write_text(markdown + "\n", encoding="utf-8")
        progress(f"wrote {json_path}")


def progress(message: str) -> None:
    """Says on stderr what is going on."""
    print(message, file=sys.stderr, flush=True)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return str(value)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + (" with changes" if git("status", "--porcelain", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
