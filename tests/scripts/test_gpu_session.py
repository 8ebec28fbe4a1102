"""scripts/gpu_session.py without a GPU: which programs a part has, what ends alone, and what is recorded."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import decoding, wfst
from benchmarks.gpu import decoders, encoder, machine, packages, system
from benchmarks.gpu.tables import read_records
from scripts import gpu_session
from scripts.gpu_session import Job, Session

ROOT = Path(__file__).parents[2]
OWN = {"benchmarks.gpu.machine": machine, "benchmarks.gpu.encoder": encoder, "benchmarks.gpu.decoders": decoders,
       "benchmarks.gpu.system": system}  # fmt: skip


@pytest.fixture
def session(tmp_path, monkeypatch) -> Session:
    monkeypatch.setattr(gpu_session, "name_missing", lambda modules: None)
    return Session(tmp_path, "right", {}, "cuda")


def jobs(session: Session, part: str) -> list[Job]:
    return list(gpu_session.PARTS[part].jobs(session._replace(part=part), session.out))


def python(name: str, code: str, **more) -> Job:
    return Job(name, [sys.executable, "-c", code], **more)


def run(session: Session, *chosen: Job, limit_s: float = 60.0) -> tuple[int, list[dict]]:
    status = gpu_session.run_jobs(session, iter(chosen), time.monotonic() + limit_s)
    return status, read_records(session.records)


def test_each_part_ends_within_nine_minutes():
    assert list(gpu_session.PARTS) == ["right", "encoder", "decoders", "system"]
    assert all(0 < part.limit_s <= 540 for part in gpu_session.PARTS.values())


def test_each_test_file_has_a_program_of_its_own_the_kernels_first(session):
    first, *rest = jobs(session, "right")
    tests = [job for job in rest if job.name.startswith("tests/")]
    assert first.name == "machine" and [job.name for job in tests] == gpu_session.gpu_tests()
    assert all((ROOT / job.name).is_file() and job.command[-1] == job.name for job in tests)
    kernels = [job.name for job in tests if job.name.startswith("tests/kernels/")]
    assert [job.name for job in tests[: len(kernels) + 1]] == [*kernels, "tests/gpu/test_cuda_graphs.py"]
    assert len(tests) > len(kernels) > 1


def test_the_sanitizer_runs_tests_that_exist(session, monkeypatch):
    assert not [job for job in jobs(session, "right") if job.name.startswith("memcheck")]
    monkeypatch.setattr(gpu_session.shutil, "which", lambda name: f"/bin/{name}")
    found = [job.command for job in jobs(session, "right") if job.name.startswith("memcheck")]
    assert [command[0] for command in found] == ["/bin/compute-sanitizer"] * 2
    for command in found:
        file, _, name = command[-1].partition("::")
        assert f"def {name}(" in (ROOT / file).read_text()


def test_the_programs_take_their_options(session, monkeypatch):
    """Parsed by the programs themselves; an option that they do not know ends the test."""
    monkeypatch.setattr(gpu_session, "is_missing", lambda module: False)
    session = session._replace(graph=Path("g.safetensors"))
    for part in gpu_session.PARTS:
        for job in jobs(session, part):
            if job.command[1] != "-m" or job.command[2] == "pytest":
                continue
            name, options = job.command[2], job.command[3:]
            if name in OWN:
                monkeypatch.setattr(OWN[name], "run_program", lambda given, text, measure, add=None: (given, add))
                given, add_options = OWN[name].main(options)
                assert given == options and options[:2] == ["--json", str(session.out / f"{part}.jsonl")]
                parser = gpu_session.argparse.ArgumentParser()
                for flag in ("--json", "--device"):
                    parser.add_argument(flag)
                if add_options:
                    add_options(parser)
                assert parser.parse_args(options).device == "cuda"
            elif name == "benchmarks.wfst":
                assert wfst.parse_arguments(options).device == "cuda"
            else:
                arguments = decoding.build_parser().parse_args(options)
                arguments.device = "cpu"
                monkeypatch.setattr(decoding, "find_spec", lambda module: module)  # NeMo
                plan = decoding._checked_plan(arguments)
                assert plan.with_nemo == job.name.startswith("nemo ")
                assert "label-looping" in plan.decoders and all(
                    (ROOT / path).is_file() for path in arguments.audio or ()
                )


def test_the_most_important_sizes_come_first(session):
    names = [job.name for job in jobs(session, "decoders")]
    assert names[:4] == ["decoders rnnt 1", "decoders tdt 1", "decoders rnnt 14", "decoders tdt 14"]
    assert names[6:8] == ["nemo rnnt 1", "nemo tdt 14"]
    assert {"speech an4-ft", "speech an4-rnnt-hybrid", "speech an4-tdt-hybrid"} < set(names)
    assert [job.name for job in jobs(session, "encoder")] == ["encoder fp32", "encoder bf16", "encoder fp16"]


def test_a_program_that_breaks_the_device_ends_alone(session):
    status, records = run(session, python("broken", "raise SystemExit(3)"), python("next", "print(7)"))
    assert status == 1
    assert [record["case"]["program"] for record in records] == ["broken", "next"]
    assert "the device did not work any more" in records[0]["error"] and records[1]["unit"] == "s"
    assert (session.out / "right.txt").read_text().endswith("7\n")


def test_a_program_that_takes_too_long_is_ended_with_what_it_started(session, monkeypatch):
    log = session.out / "right.txt"

    class Slow(subprocess.Popen):
        """Its time is up as soon as it has started its own program."""

        def wait(self, timeout=None):
            if timeout is None:
                return super().wait()
            while "started" not in log.read_text().partition("\n")[2]:
                time.sleep(0.01)
            raise subprocess.TimeoutExpired(self.args, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(gpu_session.subprocess, "Popen", Slow)
        status, records = run(session, Job("slow", ["sh", "-c", "sleep 1000 & echo $! started; wait"]))
    assert status == 1 and "its time was up" in records[0]["error"]
    pid = int(log.read_text().splitlines()[1].split()[0])
    while is_running(pid):  # the test's own limit ends this
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """False for a process that has ended, waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_without_time_left_nothing_begins(session):
    status, records = run(session, python("late", "raise SystemExit(1)"), limit_s=1.0)
    assert status == 0 and records[0]["skipped"] == "no time left in this part"


def test_a_file_without_a_test_for_this_machine_is_no_failure(session):
    assert run(session, python("tests/x.py", f"raise SystemExit({gpu_session.NO_TESTS_COLLECTED})"))[0] == 0


@pytest.mark.parametrize(
    ("skips", "missing", "status"), [(0, "", 0), (0, "triton", 0), (2, "triton", 0), (2, "", 1), (2, "pytest", 1)]
)
def test_skipped_tests_are_no_success(session, monkeypatch, skips, missing, status):
    monkeypatch.setattr(gpu_session, "is_missing", lambda module: module == missing)
    report = session.out / "tests.xml"
    case = '<testcase><skipped type="pytest.skip" message="cuda-bindings is too old"/></testcase>'
    head = f'<testsuite tests="{skips + 3}" failures="0" errors="1" skipped="{skips}">'
    report.write_text(f"<testsuites>{head}<testcase/>{case * skips}</testsuite></testsuites>")
    found, records = run(session, python("tests/x.py", "", report=report))
    assert found == status and not report.exists()
    (passed,) = [record for record in records if record.get("unit") == "passed"]
    assert (passed["value"], passed["predicted"]) == (2, 3)
    assert [r["skipped"] for r in records if "skipped" in r] == [f"{skips}: cuda-bindings is too old"] * bool(skips)


def test_a_report_that_was_cut_off_is_named(session):
    report = session.out / "speech.json"
    report.write_text('{"figures": [')
    status, records = run(session, python("speech", "", report=report))
    assert status == 0 and "error" in records[0] and not report.exists()


def test_limits_are_checked(capsys):
    for limit in ("0", "541", "nan"):
        with pytest.raises(SystemExit):
            gpu_session.parse_arguments(["--part", "right", "--out", "x", "--limit-s", limit])
        assert "at most 540" in capsys.readouterr().err


def test_what_is_missing_is_named(monkeypatch, tmp_path, capsys):
    assert packages.name_missing({"torch": "torch"}) is None
    assert "bring the wheels its-wheel in" in packages.name_missing({"no_such_module": "its-wheel", "torch": "torch"})
    monkeypatch.setattr(gpu_session, "describe", lambda environment: {"torch": "2.11"})
    monkeypatch.setattr(gpu_session, "NEEDED", {"no_such_module": "its-wheel"})
    monkeypatch.setattr(sys, "argv", ["gpu_session", "--part", "right", "--out", str(tmp_path)])
    assert gpu_session.main() == 1
    assert "its-wheel" in capsys.readouterr().err
    environment, missing = read_records(tmp_path / "right.jsonl")
    assert environment["environment"] == {"torch": "2.11"} and "its-wheel" in missing["error"]


def test_a_package_that_others_left_empty_is_missing(monkeypatch, tmp_path):
    (tmp_path / "emptied").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [packages.is_missing(name) for name in ("emptied", "emptied.bindings", "torch.nn")] == [False, True, False]


def test_files_with_gpu_tests_are_found():
    """Those with the marker in them, or in a fixture that they use."""
    chosen = gpu_session.gpu_tests()
    assert {"tests/gpu/test_cuda_graphs.py", "tests/kernels/test_joint.py", "tests/benchmarks/test_decoding.py"} <= set(
        chosen
    )
    users = [path for path in (ROOT / "tests").rglob("test_*.py") if "kernel_device" in path.read_text()]
    for path in users:
        place = path.relative_to(ROOT)
        assert {str(place), *map(str, place.parents)} & set(chosen) or path == Path(__file__), place


def test_tables_can_be_made_again(tmp_path, monkeypatch):
    (tmp_path / "system.jsonl").write_text(
        json.dumps({"name": "copy", "case": {"bytes": 8}, "value": 3.0, "unit": "GB/s", "predicted": 2.0}) + '\n{"na'
    )
    monkeypatch.setattr(sys, "argv", ["gpu_session", "--tables", "--out", str(tmp_path)])
    assert gpu_session.main() == 0
    assert "1.50" in (tmp_path / "system.md").read_text()


@pytest.mark.nightly
@pytest.mark.parametrize("part", gpu_session.PARTS)
def test_a_part_runs_without_a_gpu(part, tmp_path):
    command = [sys.executable, "-m", "scripts.gpu_session", "--part", part, "--out", str(tmp_path), "--device", "cpu"]
    done = subprocess.run([*command, "--tiny"], cwd=ROOT, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    records = read_records(tmp_path / f"{part}.jsonl")
    assert not [record for record in records if "error" in record]
    assert sum("value" in record for record in records) > 3
    assert {path.name for path in tmp_path.iterdir()} == {f"{part}.jsonl", f"{part}.txt", f"{part}.md"}
