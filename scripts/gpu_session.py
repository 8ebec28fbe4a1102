"""Runs the GPU tests and the decoder benchmark on a bare GPU machine without a network.

    python scripts/gpu_session.py --out DIR [--only PART,...] [--wheels DIR] [--graph FILE]
        [-- BENCHMARK OPTIONS]

Parts, in this order. Each can be run alone, and its files are in --out even if a later part is cut short:

    tests        every test that needs a GPU                               tests-FILE.txt, tests-FILE.xml
    greedy       random RNN-T and TDT: greedy search, boosted phrases       greedy.txt, greedy.json
    bundled      the models of the repository, on speech                    bundled-MODEL.txt, bundled-MODEL.json
    beams-rnnt   random RNN-T: both beam searches and label-looping         beams-rnnt.txt, beams-rnnt.json
    beams-tdt    the same for TDT                                          beams-tdt.txt, beams-tdt.json
    wfst         the search over the graph of --graph, if there is one,     wfst-KERNELS.txt, wfst-KERNELS.json
                 in PyTorch and by kernels

If a call is limited in time, make several: `--only tests`, then `--only greedy,bundled`, then `--only
beams-rnnt,beams-tdt`.
BENCHMARK OPTIONS (`python -m benchmarks.decoding --help`) follow those of each of its runs and override them, for
example `-- --batch 1,32 --repeats 3` for a quick look.

Installs nothing: the package runs from src/. It needs Python 3.10 or newer and the packages torch (for CUDA), numpy,
safetensors, sentencepiece and pyyaml; the tests and bundled models also soundfile (with cffi) and soxr, the tests also
pytest (with iniconfig, pluggy, packaging, pygments) and hypothesis (with sortedcontainers). Without cuda-bindings there
are no graphs with WHILE nodes, without triton no fused kernels: their tests are skipped and their lines unavailable.
Missing packages are named with their wheels; wheels in --wheels are unpacked into a temporary folder. environment.json
records the environment. Exit status 1 if something failed.
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
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
NEEDED = {"torch": "torch", "numpy": "numpy", "safetensors": "safetensors", "sentencepiece": "sentencepiece",
          "yaml": "pyyaml"}  # fmt: skip
FOR_AUDIO = {"soundfile": "soundfile", "_cffi_backend": "cffi", "soxr": "soxr"}
FOR_TESTS = FOR_AUDIO | {"pytest": "pytest", "iniconfig": "iniconfig", "pluggy": "pluggy", "packaging": "packaging",
                         "pygments": "pygments", "hypothesis": "hypothesis",
                         "sortedcontainers": "sortedcontainers"}  # fmt: skip
FOR_SOME = {
    "cuda.bindings": ("cuda-bindings", "graphs with WHILE nodes"),
    "triton": ("triton", "fused kernels: their tests and lines"),
    "pytest_timeout": ("pytest-timeout", "limits on a test's time"),
}
TESTS_SKIP_WITHOUT = ("cuda.bindings", "triton")
FIRST_TESTS = ("tests/kernels/", "cuda_graphs")
NO_TESTS_COLLECTED = 5  # pytest's exit status
BEAMS = ["--decoders", "label-looping,alsd,aes", "--beams", "1,2,4,8,12", "--kernels", "torch"]


class Session(NamedTuple):
    """Arguments of every part."""

    out: Path
    environment: dict[str, str]
    benchmark_options: list[str]
    graph: Path | None = None


def main() -> int:
    """Command line; returns the exit status."""
    arguments = parse_arguments(sys.argv[1:])
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
        session = Session(out, environment, arguments.benchmark_options, arguments.graph)
        statuses = [part(session) for name, part in PARTS.items() if name in arguments.only]
    return int(any(statuses))


def parse_arguments(given: list[str]) -> argparse.Namespace:
    """Arguments after `--` go to the benchmarks."""
    separator = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART,...", help=", ".join(PARTS))
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--graph", type=Path, metavar="FILE", help="of `penstock graph build`, for the part wfst")
    arguments = parser.parse_args(given[:separator])
    arguments.only = arguments.only.split(",")
    for name in arguments.only:
        if name not in PARTS:
            parser.error(f"--only: {name!r} is not a part; parts: {', '.join(PARTS)}")
    arguments.benchmark_options = given[separator + 1 :]
    return arguments


def unpack(wheels: Path, folder: Path) -> None:
    """Unpacks the wheels without network, dependencies or compiling."""
    files = [str(path) for path in sorted(wheels.glob("*.whl"))]
    options = ["--no-index", "--no-deps", "--no-compile", "--quiet", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *files], check=True)


def report_missing(modules: dict[str, str]) -> bool:
    """Prints the wheels of missing modules; True if none is missing."""
    missing = [wheel for module, wheel in modules.items() if is_missing(module)]
    if missing:
        print(f"missing: bring the wheels {', '.join(missing)} in a folder and pass it as --wheels", flush=True)
    return not missing


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
    driver = _driver_version()
    missing = {wheel: use for module, (wheel, use) in FOR_SOME.items() if is_missing(module)}
    versions = {name: _version(name) for name in ("cuda-bindings", "numpy", "pytest", "triton")}
    return {"python": platform.python_version(), "driver": driver, **torch, **versions, "missing": missing}


def run_tests(session: Session) -> int:
    """`pytest -m gpu` on each file that has such tests, the kernels' first.

    Each file has a process of its own: a failed device assertion makes every later test of its process fail. Skipped
    tests are listed, and fail the part if no optional package is missing.
    """
    if not report_missing(FOR_TESTS):
        return 1
    options = ["-q", "-m", "gpu", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    if is_missing("pytest_timeout"):  # else its setting in pyproject.toml is unknown
        options += ["-o", "addopts=-ra --import-mode=importlib"]
    else:  # a signal does not reach Python during a wait for a graph that never ends
        options += ["-o", "timeout_method=thread"]
    statuses, skipped = [], Counter()
    for file in gpu_tests():
        name = "tests-" + file.removeprefix("tests/").removesuffix(".py").replace("/", "-")
        report = session.out / f"{name}.xml"
        status = run([sys.executable, "-m", "pytest", *options, f"--junitxml={report}", file], session, name)
        statuses.append(0 if status == NO_TESTS_COLLECTED else status)
        skipped.update(read_skipped(report) if report.exists() else {})
    for reason, count in skipped.items():
        print(f"skipped {count}: {reason}", flush=True)
    return int(any(statuses) or (bool(skipped) and not any(map(is_missing, TESTS_SKIP_WITHOUT))))


def read_skipped(report: Path) -> dict[str, int]:
    """Reasons of skipped tests with their counts, from a JUnit XML report."""
    found = ElementTree.parse(report).iter("skipped")
    return dict(Counter(element.get("message", "no reason given") for element in found))


def gpu_tests() -> list[str]:
    """Files with the marker, and those of folders whose conftest has it, the kernels' first, then the graphs'.

    Importing others needs more packages.
    """
    marked = [path for path in (ROOT / "tests").rglob("*.py") if "mark.gpu" in path.read_text()]
    files = {path for path in marked if path.name != "conftest.py"}
    for path in marked:
        if path.name == "conftest.py":
            files |= set(path.parent.glob("test_*.py"))
    names = sorted(path.relative_to(ROOT).as_posix() for path in files)
    return sorted(names, key=lambda name: next((i for i, first in enumerate(FIRST_TESTS) if first in name), 9))


def run_greedy(session: Session) -> int:
    """Frame-looping and label-looping, torch and fused, and boosted phrases."""
    return run_benchmark(session, "greedy", ["--decoders", "label-looping,boosted,frame-looping"])


def run_beams(kind: str) -> Callable[[Session], int]:
    """The part for one kind of random model."""
    return lambda session: run_benchmark(session, f"beams-{kind}", ["--random", kind, *BEAMS])


def run_bundled(session: Session) -> int:
    """Each model under models/ on the repository's recordings."""
    if not report_missing(FOR_AUDIO):
        return 1
    recordings = sorted((ROOT / "tests/data/an4/flac").glob("*.flac"))
    audio = [option for path in recordings for option in ("--audio", str(path.relative_to(ROOT)))]
    decoders = ["--decoders", "label-looping,boosted,alsd,aes", "--beams", "1,4"]
    models = sorted(path.parent for path in (ROOT / "models").glob("*/config.json"))
    statuses = [
        run_benchmark(session, f"bundled-{m.name}", ["--model", str(m.relative_to(ROOT)), *audio, *decoders])
        for m in models
    ]
    return int(any(statuses))


def run_wfst(session: Session) -> int:
    """The graph search alone, beside kaldi-decoder where it is installed."""
    if session.graph is None:
        print("wfst: left out without --graph", flush=True)
        return 0
    if not report_missing(FOR_AUDIO):
        return 1
    command = [sys.executable, "-m", "benchmarks.wfst", "--device", "cuda", "--only", "search"]
    command += ["--graph", str(session.graph.absolute())]
    statuses = []
    for kernels in ("torch",) if is_missing("triton") else ("torch", "fused"):
        report = session.out / f"wfst-{kernels}.json"
        statuses.append(run([*command, "--kernels", kernels, "--json", str(report)], session, report.stem))
    return int(any(statuses))


PARTS: dict[str, Callable[[Session], int]] = {
    "tests": run_tests,
    "greedy": run_greedy,
    "bundled": run_bundled,
    "beams-rnnt": run_beams("rnnt"),
    "beams-tdt": run_beams("tdt"),
    "wfst": run_wfst,
}
"""Most valuable first: correctness, then what users notice, then the papers' tables."""


def run_benchmark(session: Session, name: str, options: list[str]) -> int:
    """Runs `python -m benchmarks.decoding` and writes NAME.txt and NAME.json."""
    command = [sys.executable, "-m", "benchmarks.decoding", "--device", "cuda", *options]
    command += ["--json", str(session.out / f"{name}.json"), *session.benchmark_options]
    return run(command, session, name)


def run(command: list[str], session: Session, name: str) -> int:
    """Runs a command; its output is shown and written to NAME.txt. Returns its exit status."""
    print("$", " ".join(command), flush=True)
    process = subprocess.Popen(
        command, cwd=ROOT, env={**session.environment, "PYTHONUNBUFFERED": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    with (session.out / f"{name}.txt").open("w") as file:
        for line in process.stdout:
            print(line, end="", flush=True)
            file.write(line)
            file.flush()
    return process.wait()


def _driver_version() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
