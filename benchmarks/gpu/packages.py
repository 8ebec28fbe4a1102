"""What is installed on a bare machine, and what is missing. Needs no package itself."""

import importlib.metadata
import importlib.util
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

NEEDED = {"torch": "torch", "numpy": "numpy", "safetensors": "safetensors", "sentencepiece": "sentencepiece",
          "yaml": "pyyaml"}  # fmt: skip
FOR_AUDIO = {"soundfile": "soundfile", "_cffi_backend": "cffi", "soxr": "soxr"}
FOR_TESTS = FOR_AUDIO | {"pytest": "pytest", "iniconfig": "iniconfig", "pluggy": "pluggy", "packaging": "packaging",
                         "pygments": "pygments", "hypothesis": "hypothesis",
                         "sortedcontainers": "sortedcontainers"}  # fmt: skip
FOR_NEMO = {"nemo": "nemo_toolkit"}
FOR_SOME = {
    "cuda.bindings": ("cuda-bindings", "graphs with WHILE nodes"),
    "triton": ("triton", "fused kernels: their tests and lines"),
    "pytest_timeout": ("pytest-timeout", "limits on a test's time"),
}


def unpack(wheels: Path, folder: Path) -> None:
    """Unpacks the wheels without network, dependencies or compiling."""
    files = [str(path) for path in sorted(wheels.glob("*.whl"))]
    options = ["--no-index", "--no-deps", "--no-compile", "--quiet", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *files], check=True)


def name_missing(modules: dict[str, str]) -> str | None:
    """Says which wheels to bring; None if no module is missing."""
    missing = [wheel for module, wheel in modules.items() if is_missing(module)]
    return f"missing: bring the wheels {', '.join(missing)} in a folder and pass it as --wheels" if missing else None


def is_missing(module: str) -> bool:
    """True if a module cannot be found. (Other NVIDIA wheels leave an empty package `cuda`.)"""
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:
        return True


def describe(environment: dict[str, str]) -> dict[str, object]:
    """Device, versions, and missing optional packages with what needs them."""
    script = (
        "import json, torch; gpu = torch.cuda.is_available(); "
        "print(json.dumps({'torch': torch.__version__, 'cuda': torch.version.cuda, "
        "'device': torch.cuda.get_device_name() if gpu else None}))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    torch = json.loads(answer.stdout) if answer.returncode == 0 else {"torch": answer.stderr[-300:]}
    missing = {wheel: use for module, (wheel, use) in FOR_SOME.items() if is_missing(module)}
    versions = {name: _version(name) for name in ("cuda-bindings", "numpy", "pytest", "triton")}
    return {
        "python": platform.python_version(), "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), **_driver(),
        **torch, **versions, "missing": missing,
    }  # fmt: skip


def _driver() -> dict[str, str | None]:
    """The driver's version, and NVRTC's, which must not be newer than the driver."""
    fields = ("driver_version", "memory.total", "clocks.max.sm", "power.limit")
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().split(", ")
    except (OSError, subprocess.CalledProcessError):
        found = [None] * len(fields)
    nvrtc = next((v for name in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12") if (v := _version(name))), None)
    return {**dict(zip(fields, found, strict=False)), "nvrtc": nvrtc}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
