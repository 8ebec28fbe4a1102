"""Runs the GPU tests, each file in a process of its own, and then the GPU benchmarks (docs/gpu.md).

    python -m scripts.gpu_run --out DIR [--limit-s 600] [--device cpu --tiny]

It installs nothing and needs no network. DIR/gpu.jsonl has a line for the versions, for each test file and for each
measurement; DIR/gpu.log has all output. A program that exceeds the limit or loses the device ends alone. The exit
status is 1 if one failed.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

from benchmarks.gpu import BENCHMARKS, Lines
from penstock.reporting import commit, date_utc, package_versions

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "triton", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "numpy")
NO_TESTS_COLLECTED = 5
_SHORTER = {"server": ("--precisions", "float16", "--trial-s", "10")}
# A signal does not reach Python while it waits for a graph that never ends.
PYTEST = ("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "-o", "timeout_method=thread")


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, default=600.0, metavar="N", help="seconds of each program (600)")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (cuda)")
    parser.add_argument("--tiny", action="store_true", help="one test file and small sizes: whether it runs at all")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    path, log = chosen.out.resolve() / "gpu.jsonl", chosen.out / "gpu.log"
    lines = Lines(path, chosen.device)
    lines.add("versions", versions(chosen.device))
    has_failed = False
    for file in test_files()[:1] if chosen.tiny else test_files():
        status, output = run([*PYTEST, file], log, chosen.limit_s)
        lines.add("tests", {"file": file, "status": status, "summary": output.rstrip().rpartition("\n")[2]})
        has_failed |= status not in (0, NO_TESTS_COLLECTED)
    for name in BENCHMARKS:
        sizes = ["--tiny"] if chosen.tiny else _SHORTER.get(name, ())
        options = ["--json", str(path), "--device", chosen.device, *sizes]
        status, _ = run(["-m", "benchmarks.gpu", name, *options], log, chosen.limit_s)
        if status != 0:
            lines.add("benchmark", {"benchmark": name, "status": status})
        has_failed |= status != 0
    return int(has_failed)


def test_files() -> list[str]:
    """Test files with the marker, and those of folders whose conftest has it, the kernels' first."""
    files = {path for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text()}
    for path in (ROOT / "tests").rglob("conftest.py"):
        files |= set(path.parent.glob("test_*.py")) if "mark.gpu" in path.read_text() else set()
    names = (path.relative_to(ROOT).as_posix() for path in files)
    return sorted(names, key=lambda name: (not name.startswith("tests/kernels/"), name))


def versions(device: str) -> dict[str, object]:
    """Date, commit, packages, GPU and driver."""
    is_gpu = device.startswith("cuda")
    query = "nvidia-smi --query-gpu=driver_version,memory.total,clocks.max.sm,power.limit --format=csv,noheader"
    return {
        "date": date_utc(), "commit": commit(), "python": platform.python_version(), "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name() if is_gpu else None,
        "driver": subprocess.getoutput(query) if is_gpu else None, **package_versions(PACKAGES),
    }  # fmt: skip


def run(command: list[str], log: Path, limit_s: float) -> tuple[int | None, str]:
    """Runs Python with a command; returns its exit status, None if it took too long, and its output."""
    folders = [ROOT / "src", ROOT / "client" / "src", ROOT]
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    began_s = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", timeout=limit_s, check=False,
        )  # fmt: skip
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        status, output = None, (error.stdout or b"").decode(errors="replace")
    text = f"$ {' '.join(command)}\n{output}\n-> {status} after {time.monotonic() - began_s:.0f} s\n"
    with log.open("a", encoding="utf-8") as file:
        file.write(text)
    print(text, flush=True)
    return status, output


if __name__ == "__main__":
    sys.exit(main())
