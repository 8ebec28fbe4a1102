"""Runs the GPU tests and measurements on a bare GPU machine without a network, in four parts.

    python -m scripts.gpu_session --part NAME --out DIR [--limit-s N] [--wheels DIR] [--graph FILE]
    python -m scripts.gpu_session --part NAME --out DIR --device cpu --tiny      # does it run at all?
    python -m scripts.gpu_session --tables --out DIR                             # tables of what is there

    right      versions; ceilings of the device; the cost of graph nodes and loops; every test that needs a GPU;
               compute-sanitizer on a kernel and on a captured search
    encoder    the step of a 24-layer encoder: contexts, batch sizes, types, eager and captured; profiles; errors
    decoders   greedy, boosted and beam search of RNN-T and TDT models under every driver; two cases beside NeMo; the
               bundled models on speech; the search over the graph of --graph
    system     real-time streams in one process, until chunks are late

Call each part by itself: each ends within its own limit (at most 9 minutes). Every measurement is a line of
DIR/NAME.jsonl as soon as it is made. DIR/NAME.txt has all output, and DIR/NAME.md the tables, made last: measured
values beside predictions (benchmarks/gpu/predictions.py). A part is a row of programs. One that breaks the device or
takes too long ends alone, and the next one begins.

Installs nothing: the package runs from src/. It needs Python 3.10 or newer and the packages torch (for CUDA), numpy,
safetensors, sentencepiece and pyyaml; tests and speech also soundfile (with cffi) and soxr, the tests also pytest (with
iniconfig, pluggy, packaging, pygments) and hypothesis (with sortedcontainers). Without cuda-bindings there are no
graphs with WHILE nodes, without triton no fused kernels: their tests are skipped and their lines unavailable. Without
nemo_toolkit and what it imports there are no cases beside NeMo. Missing packages are named with their wheels; wheels in
--wheels are unpacked into a temporary folder. Exit status 1 if something failed.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from benchmarks.gpu.packages import FOR_AUDIO, FOR_NEMO, FOR_TESTS, NEEDED, describe, is_missing, name_missing, unpack

ROOT = Path(__file__).resolve().parents[1]
TESTS_SKIP_WITHOUT = ("cuda.bindings", "triton")
FIRST_TESTS = ("tests/kernels/", "cuda_graphs")
NO_TESTS_COLLECTED, STICKY = 5, 3  # exit statuses of pytest and of benchmarks/gpu
MAX_LIMIT_S = 540.0
MIN_JOB_S = 5.0
SANITIZED = (
    "tests/kernels/test_joint.py::test_kernel_with_a_large_vocabulary",
    "tests/gpu/test_cuda_graphs.py::test_a_loop_in_a_loop_on_the_device",
)


class Session(NamedTuple):
    """Arguments of every part."""

    out: Path
    part: str
    environment: dict[str, str]
    device: str = "cuda"
    is_tiny: bool = False
    graph: Path | None = None

    @property
    def records(self) -> Path:
        """The part's file of JSON lines."""
        return self.out / f"{self.part}.jsonl"

    def record(self, **values: object) -> None:
        """Appends a line."""
        with self.records.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


class Job(NamedTuple):
    """One program of a part."""

    name: str
    command: list[str]
    limit_s: float = MAX_LIMIT_S
    report: Path | None = None
    """A file that the program writes, whose content is recorded after it."""


def main() -> int:
    """Command line; returns the exit status."""
    arguments = parse_arguments(sys.argv[1:])
    sys.path.insert(0, str(ROOT / "src"))  # nothing is installed
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if arguments.tables:
        return write_tables(out, [path.stem for path in sorted(out.glob("*.jsonl"))])
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = [str(ROOT / "src"), str(ROOT)]
        if arguments.wheels:
            unpack(arguments.wheels, Path(folder))
            path.append(folder)
            sys.path.append(folder)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])}
        session = Session(out, arguments.part, environment, arguments.device, arguments.tiny, arguments.graph)
        description = describe(environment)
        session.record(name="environment", case={}, environment=description)
        print(json.dumps(description, indent=2), flush=True)
        if missing := name_missing(NEEDED):
            session.record(name="packages", case={}, error=missing)
            print(missing, file=sys.stderr)
            return 1
        part = PARTS[arguments.part]
        limit_s = part.limit_s if arguments.limit_s is None else arguments.limit_s
        status = run_jobs(session, part.jobs(session, Path(folder)), began_s + limit_s)
    return int(write_tables(out, [arguments.part]) or status)


def parse_arguments(given: list[str]) -> argparse.Namespace:
    """The command line's values."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--part", choices=tuple(PARTS))
    what.add_argument("--tables", action="store_true", help="only write the tables of the parts in --out")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, metavar="N", help="seconds of the part; at most 540")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (cuda)")
    parser.add_argument("--tiny", action="store_true", help="small sizes and one test file: whether the part runs")
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--graph", type=Path, metavar="FILE", help="of `penstock graph build`, for the part decoders")
    arguments = parser.parse_args(given)
    if arguments.limit_s is not None and not 0 < arguments.limit_s <= MAX_LIMIT_S:
        parser.error(f"--limit-s: {arguments.limit_s:g}; accepted: above 0, at most {MAX_LIMIT_S:g}")
    return arguments


def run_jobs(session: Session, jobs: Iterator[Job], end_s: float) -> int:
    """Runs one program after another until `end_s` of the monotonic clock; returns 1 if one failed.

    What ends by a broken device or its limit ends alone. Programs without time are recorded as skipped.
    """
    is_failed = False
    for job in jobs:
        left_s = end_s - time.monotonic()
        if left_s < MIN_JOB_S:
            session.record(name="program", case={"program": job.name}, skipped="no time left in this part")
            continue
        began_s = time.monotonic()
        status = run(job.command, session, min(left_s, job.limit_s))
        seconds = time.monotonic() - began_s
        case = {"program": job.name}
        if job.report is not None and job.report.exists():
            try:
                is_failed |= not record_report(session, job.report, case)
            except (ValueError, ElementTree.ParseError) as error:  # cut off
                session.record(name="report", case=case, error=str(error))
            job.report.unlink()
        if status in (0, NO_TESTS_COLLECTED):
            session.record(name="program", case=case, value=seconds, unit="s", predicted=None)
            continue
        is_failed = True
        reason = {None: "its time was up", STICKY: "the device did not work any more"}.get(status, f"status {status}")
        session.record(name="program", case=case, error=f"{reason}, after {seconds:.0f} s")
    return int(is_failed)


def run(command: list[str], session: Session, limit_s: float) -> int | None:
    """Runs a command; its output is shown and added to NAME.txt. Returns its exit status, None if it took too long."""
    print("$", " ".join(command), flush=True)
    with (session.out / f"{session.part}.txt").open("a") as log:
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        begin = log.tell()
        process = subprocess.Popen(
            command, cwd=ROOT, env={**session.environment, "PYTHONUNBUFFERED": "1"}, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
    print((session.out / f"{session.part}.txt").read_text(errors="replace")[begin:], end="", flush=True)
    return status


def write_tables(out: Path, parts: list[str]) -> int:
    """Writes and prints the tables of these parts, from their files of JSON lines."""
    from benchmarks.gpu.tables import read_records, to_markdown

    for part in parts:
        text = f"## {part}\n\n{to_markdown(read_records(out / f'{part}.jsonl'))}\n"
        (out / f"{part}.md").write_text(text, encoding="utf-8")
        print(text, flush=True)
    return 0


def right_jobs(session: Session, folder: Path) -> Iterator[Job]:
    """Ceilings and trials, then the tests, each file in a process of its own: a failed device assertion makes every
    later test of its process fail. Then the sanitizer."""
    yield gpu_job(session, "machine", "machine", limit_s=120.0)
    if missing := name_missing(FOR_TESTS):
        session.record(name="tests", case={}, error=missing)
        return
    options = ["-q", "-m", "gpu", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    if is_missing("pytest_timeout"):  # else its setting in pyproject.toml is unknown
        options += ["-o", "addopts=-ra --import-mode=importlib"]
    else:  # a signal does not reach Python during a wait for a graph that never ends
        options += ["-o", "timeout_method=thread"]
    pytest = [sys.executable, "-m", "pytest", *options]
    for file in gpu_tests()[:1] if session.is_tiny else gpu_tests():
        report = folder / f"{file.replace('/', '-')}.xml"
        yield Job(file, [*pytest, f"--junitxml={report}", file], 150.0, report)
    sanitizer = shutil.which("compute-sanitizer")
    for test in SANITIZED:
        if sanitizer is None or session.is_tiny:
            session.record(name="sanitizer", case={"test": test}, skipped="there is no compute-sanitizer")
        else:
            yield Job(
                f"memcheck {test}", [sanitizer, "--tool", "memcheck", "--error-exitcode", "9", *pytest, test], 90.0
            )


def encoder_jobs(session: Session, _: Path) -> Iterator[Job]:
    """A program for each type."""
    for dtype in ("fp32", "bf16", "fp16"):
        yield gpu_job(session, f"encoder {dtype}", "encoder", "--dtype", dtype, limit_s=200.0)


def decoders_jobs(session: Session, folder: Path) -> Iterator[Job]:
    """A program for each kind of model and length of chunks; NeMo's searches; then speech, then a decoding graph."""
    for right in (0, 13, 3):
        for kind in ("rnnt", "tdt"):
            name = f"decoders {kind} {right + 1}"
            yield gpu_job(session, name, "decoders", "--kind", kind, "--right", str(right), limit_s=110.0)
    common = ["--device", session.device]
    yield from nemo_jobs(session, folder, common)
    if missing := name_missing(FOR_AUDIO):
        session.record(name="speech", case={}, skipped=missing)
        return
    recordings = sorted((ROOT / "tests/data/an4/flac").glob("*.flac"))
    audio = [option for path in recordings for option in ("--audio", str(path.relative_to(ROOT)))]
    decoders = ["--decoders", "label-looping,boosted,alsd", "--beams", "4"]
    sizes = ["--batch", "1", "--repeats", "1"] if session.is_tiny else ["--batch", "1,32", "--repeats", "3"]
    models = sorted(path.parent for path in (ROOT / "models").glob("*/config.json"))
    for model in models[:1] if session.is_tiny else models:
        report = folder / f"{model.name}.json"
        command = [sys.executable, "-m", "benchmarks.decoding", "--model", str(model.relative_to(ROOT)), *common]
        yield Job(f"speech {model.name}", [*command, *audio, *decoders, *sizes, "--json", str(report)], 90.0, report)
    if session.graph is None:
        session.record(name="decoding graph", case={}, skipped="no --graph")
        return
    command = [sys.executable, "-m", "benchmarks.wfst", *common, "--only", "search", "--graph"]
    for kernels in ("torch",) if is_missing("triton") else ("torch", "fused"):
        report = folder / f"wfst-{kernels}.json"
        options = [str(session.graph.absolute()), "--kernels", kernels, "--json", str(report)]
        yield Job(f"wfst {kernels}", [*command, *options], 120.0, report)


def nemo_jobs(session: Session, folder: Path, common: list[str]) -> Iterator[Job]:
    """Greedy and beam search beside NeMo's: chunks of 80 ms with an RNN-T, of 1.12 s with a TDT model."""
    if missing := name_missing(FOR_NEMO):
        session.record(name="nemo", case={}, skipped=missing)
        return
    sizes = ["--size", "large", "--batch", "64", "--seconds", "10", "--repeats", "3"]
    if session.is_tiny:
        sizes = ["--size", "small", "--batch", "2", "--seconds", "2.5", "--repeats", "1"]
    decoders = ["--decoders", "label-looping,alsd", "--beams", "6", "--nemo"]
    for kind, right in (("rnnt", 0), ("tdt", 13)):
        report = folder / f"nemo-{kind}.json"
        model = ["--random", kind, "--encoder", "none", "--context", f"56,{right}"]
        command = [sys.executable, "-m", "benchmarks.decoding", *model, *common, *decoders, *sizes]
        yield Job(f"nemo {kind} {right + 1}", [*command, "--json", str(report)], 110.0, report)


def system_jobs(session: Session, _: Path) -> Iterator[Job]:
    """Chunks of 80 ms and of 1.12 s."""
    for right in (0, 13):
        yield gpu_job(session, f"system {right + 1}", "system", "--right", str(right), limit_s=260.0)


class Part(NamedTuple):
    """Programs and the seconds that they have together."""

    limit_s: float
    jobs: Callable[[Session, Path], Iterator[Job]]


PARTS = {
    "right": Part(480.0, right_jobs),
    "encoder": Part(520.0, encoder_jobs),
    "decoders": Part(520.0, decoders_jobs),
    "system": Part(520.0, system_jobs),
}


def gpu_job(session: Session, name: str, module: str, *options: str, limit_s: float) -> Job:
    """A program of benchmarks/gpu, which adds its lines itself."""
    command = [sys.executable, "-m", f"benchmarks.gpu.{module}", "--json", str(session.records)]
    tiny = ["--tiny"] if session.is_tiny else []
    return Job(name, [*command, "--device", session.device, *tiny, *options], limit_s)


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


def record_report(session: Session, path: Path, case: dict[str, str]) -> bool:
    """Records a program's own report: JSON as it is, of JUnit XML the tests that passed and why others were skipped.

    False if tests were skipped on a GPU although no optional package is missing.
    """
    if path.suffix == ".json":
        session.record(name="report", case=case, report=json.loads(path.read_text(encoding="utf-8")))
        return True
    document = ElementTree.parse(path)
    suites = list(document.iter("testsuite"))
    tests, *others = (sum(int(s.get(key, 0)) for s in suites) for key in ("tests", "failures", "errors", "skipped"))
    session.record(name="tests", case=case, value=tests - sum(others), unit="passed", predicted=tests - others[-1])
    reasons = Counter(element.get("message", "no reason given") for element in document.iter("skipped"))
    for reason, count in reasons.items():
        session.record(name="tests", case=case, skipped=f"{count}: {reason}")
    return not reasons or session.device == "cpu" or any(map(is_missing, TESTS_SKIP_WITHOUT))


if __name__ == "__main__":
    sys.exit(main())
