"""What the benchmarks share: the machine they ran on, tables, result files, progress on stderr."""

import json
import os
import platform
import sys
from pathlib import Path

from penstock.reporting.hardware import core_count, cpu_name, memory_gib
from penstock.reporting.software import commit, date_utc, package_versions

ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("torch", "numpy", "nemo_toolkit", "sherpa-onnx", "tritonclient", "nvidia-pytriton")


def machine(threads: int) -> dict[str, object]:
    """Where, when and with what a benchmark ran. `threads` are those of one process."""
    return {
        "date": date_utc(),
        "commit": commit(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "cpu": cpu_name(),
        "cores": core_count(),
        "memory_gib": round(memory_gib()),
        "threads": threads,
        "load_average_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "packages": package_versions(_PACKAGES),
    }


def describe(where: dict) -> str:
    """One line of Markdown."""
    packages = ", ".join(f"{name} {found}" for name, found in where["packages"].items())
    return (
        f"{where['cpu']}, {where['cores']} cores, {where['threads']} thread{'s' * (where['threads'] != 1)} a process; "
        f"{packages}; {where['date']}, commit {where['commit']}, load before {where['load_average_before']:.1f}"
    )


def publish(markdown: str, document: dict, json_path: Path | None, is_quiet: bool = False) -> None:
    """Prints a result, unless `is_quiet`; with a path also writes it there as JSON, and as Markdown beside it."""
    if not is_quiet:
        print(markdown, flush=True)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        json_path.with_suffix(".md").write_text(markdown + "\n", encoding="utf-8")
        if not is_quiet:
            progress(f"wrote {json_path}")


def progress(message: str) -> None:
    """Says on stderr what is going on."""
    print(message, file=sys.stderr, flush=True)
