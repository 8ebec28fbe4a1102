"""Runs the GPU tests and then the decoding benchmark on a machine with nothing but Python, torch and cuda-bindings.

    python scripts/gpu_session.py --out DIR [--only tests|benchmark] [--wheels DIR] [-- BENCHMARK OPTIONS]

Needs no network and installs nothing: the package is taken from src/. What is missing is named with the wheel to bring;
wheels in --wheels are unpacked into a temporary folder. All that is learnt lies in --out: environment.json,
gpu_tests.txt, gpu_tests.xml, benchmark.txt, decoding.json. Exit status 1 if something failed.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = {"torch": "torch", "numpy": "numpy", "safetensors": "safetensors", "sentencepiece": "sentencepiece",
          "yaml": "pyyaml"}  # fmt: skip
FOR_TESTS = {"pytest": "pytest", "iniconfig": "iniconfig", "pluggy": "pluggy", "packaging": "packaging"}
FOR_SOME = {
    "soundfile": ("soundfile", "tests that read audio files"),
    "soxr": ("soxr", "tests that read audio files"),
    "cuda": ("cuda-bindings", "graphs with WHILE nodes"),
    "pytest_timeout": ("pytest-timeout", "limits on a test's time"),
}


def main() -> int:
    """Command line; returns the exit status."""
    arguments = parse_arguments()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = [str(ROOT / "src"), str(ROOT)]
        if arguments.wheels:
            unpack(arguments.wheels, Path(folder))
            path.append(folder)
            sys.path.append(folder)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])}
        description = describe(environment)
        (out / "environment.json").write_text(json.dumps(description, indent=2) + "\n")
        print(json.dumps(description, indent=2), flush=True)
        if not report_missing(NEEDED):
            return 1
        parts = {"tests": run_tests, "benchmark": run_benchmark}
        chosen = [arguments.only] if arguments.only else list(parts)
        statuses = [parts[name](out, environment, arguments.benchmark_options) for name in chosen]
    return int(any(statuses))


def parse_arguments() -> argparse.Namespace:
    """Everything behind `--` goes to the benchmark."""
    separator = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=["tests", "benchmark"])
    parser.add_argument("--wheels", type=Path)
    arguments = parser.parse_args(sys.argv[1:separator])
    arguments.benchmark_options = sys.argv[separator + 1 :]
    return arguments


def unpack(wheels: Path, folder: Path) -> None:
    """Unpacks the wheels, without network, needs or compiling."""
    files = [str(path) for path in sorted(wheels.glob("*.whl"))]
    options = ["--no-index", "--no-deps", "--no-compile", "--quiet", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *files], check=True)


def report_missing(modules: dict[str, str]) -> bool:
    """Names the wheels of modules that are missing; True if none is."""
    missing = [wheel for module, wheel in modules.items() if importlib.util.find_spec(module) is None]
    if missing:
        print(f"missing: bring the wheels {', '.join(missing)} in a folder and name it with --wheels", flush=True)
    return not missing


def describe(environment: dict[str, str]) -> dict[str, object]:
    """The machine and the versions; what is optional and missing with what goes without it."""
    question = (
        "import json, torch; gpu = torch.cuda.is_available(); "
        "print(json.dumps({'torch': torch.__version__, 'cuda': torch.version.cuda, "
        "'device': torch.cuda.get_device_name() if gpu else None}))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", question], env=environment, capture_output=True, text=True, check=False
    )
    torch = json.loads(answer.stdout) if answer.returncode == 0 else {"torch": answer.stderr[-300:]}
    missing = {wheel: use for module, (wheel, use) in FOR_SOME.items() if importlib.util.find_spec(module) is None}
    versions = {name: _version(name) for name in ("cuda-bindings", "numpy", "pytest", "triton")}
    return {"python": platform.python_version(), **torch, **versions, "missing": missing}


def run_tests(out: Path, environment: dict[str, str], _: list[str]) -> int:
    """`pytest -m gpu`; a test file that cannot be imported fails alone."""
    if not report_missing(FOR_TESTS):
        return 1
    options = ["-q", "-m", "gpu", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    if importlib.util.find_spec("pytest_timeout") is None:  # else the project's setting of it is an unknown one
        options += ["-o", "addopts=-ra --import-mode=importlib"]
    command = [sys.executable, "-m", "pytest", *options, f"--junitxml={out / 'gpu_tests.xml'}", "tests"]
    return run(command, out / "gpu_tests.txt", environment)


def run_benchmark(out: Path, environment: dict[str, str], options: list[str]) -> int:
    """`penstock benchmark decoding`, where there is one."""
    command = [sys.executable, "-m", "penstock.cli", "benchmark", "decoding"]
    answer = subprocess.run([*command, "--help"], env=environment, cwd=ROOT, capture_output=True, check=False)
    if answer.returncode != 0:
        message = "there is no `penstock benchmark decoding`: nothing measured"
        (out / "benchmark.txt").write_text(message + "\n")
        print(message, flush=True)
        return 0
    options = options or ["--device", "cuda", "--json", str(out / "decoding.json")]
    return run([*command, *options], out / "benchmark.txt", environment)


def run(command: list[str], log: Path, environment: dict[str, str]) -> int:
    """Runs a command, its output shown and kept; returns its exit status."""
    print("$", " ".join(command), flush=True)
    process = subprocess.Popen(
        command, cwd=ROOT, env={**environment, "PYTHONUNBUFFERED": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    with log.open("w") as file:
        for line in process.stdout:
            print(line, end="", flush=True)
            file.write(line)
            file.flush()
    return process.wait()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
