"""scripts/gpu_session.py without a GPU: which parts run, with which options, and how it names what is missing."""

import argparse
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import decoding as benchmark
from benchmarks import wfst

ROOT = Path(__file__).parents[2]

BUNDLED = ("bundled-an4-ft", "bundled-an4-rnnt-hybrid", "bundled-an4-tdt-hybrid")


@pytest.fixture
def script(monkeypatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_session", ROOT / "scripts" / "gpu_session.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "describe", lambda environment: {})
    monkeypatch.setattr(module, "report_missing", lambda modules: True)
    return module


@pytest.fixture
def session(script, monkeypatch, tmp_path) -> Callable[..., list[tuple[str, list[str]]]]:
    """Runs the script with arguments; returns names and commands of what it would run."""

    def session(*arguments: str, status: int = 0) -> list[tuple[str, list[str]]]:
        ran = []

        def run(command, _, name):
            ran.append((name, command[1:]))
            return status

        monkeypatch.setattr(script, "run", run)
        monkeypatch.setattr(sys, "argv", ["gpu_session.py", "--out", str(tmp_path / "out"), *arguments])
        assert script.main() == status
        return ran

    return session


def read_options(command: list[str]) -> argparse.Namespace:
    """Parses options like the benchmark; an option that it does not know ends the test."""
    assert command[:2] == ["-m", "benchmarks.decoding"]
    args = benchmark.build_parser().parse_args(command[2:])
    args.device = "cpu"
    assert args.json.parent.is_dir()
    return args


def benchmarks(ran: list[tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
    return [(name, command) for name, command in ran if not name.startswith("tests-")]


def test_everything_in_order(session):
    names = [name for name, _ in session()]
    tests = [name for name in names if name.startswith("tests-")]
    assert names == [*tests, "greedy", *BUNDLED, "beams-rnnt", "beams-tdt"]
    assert "tests-gpu-test_recognizer_on_gpu" in tests


def test_each_test_file_has_a_process_of_its_own_the_kernels_first(session):
    """A failed device assertion makes every later test of its process fail."""
    ran = session("--only", "tests")
    files = [[argument for argument in command if argument.startswith("tests/")] for _, command in ran]
    assert all(len(named) == 1 and (ROOT / named[0]).is_file() for named in files)
    assert not any("-n" in command for _, command in ran)
    names = [name for name, _ in ran]
    kernels = [name for name in names if name.startswith("tests-kernels-")]
    assert len(set(names)) == len(names) > len(kernels) > 1
    assert names[: len(kernels) + 1] == [*kernels, "tests-gpu-test_cuda_graphs"]


def test_a_file_that_fails_stops_no_other(session):
    assert len(session("--only", "tests", status=1)) == len(session("--only", "tests"))


def test_a_file_without_a_test_for_this_machine_is_no_failure(script, monkeypatch, tmp_path):
    monkeypatch.setattr(script, "is_missing", lambda module: False)
    monkeypatch.setattr(script, "run", lambda command, session, name: script.NO_TESTS_COLLECTED)
    assert script.run_tests(script.Session(tmp_path, {}, [])) == 0


def test_the_search_over_a_graph(session, script, monkeypatch):
    assert session("--only", "wfst") == []
    for missing, kinds in (([], ["torch", "fused"]), (["triton"], ["torch"])):
        monkeypatch.setattr(script, "is_missing", missing.__contains__)
        ran = session("--only", "wfst", "--graph", "g.safetensors")
        assert [name for name, _ in ran] == [f"wfst-{kernels}" for kernels in kinds]
        for kernels, (name, command) in zip(kinds, ran, strict=True):
            assert command[:2] == ["-m", "benchmarks.wfst"]
            arguments = wfst.parse_arguments(command[2:])
            assert (arguments.device, arguments.only, arguments.graph[0].name) == ("cuda", ["search"], "g.safetensors")
            assert (arguments.kernels, arguments.json.stem) == (kernels, name)


def test_parts_can_be_had_alone_and_together_make_the_whole(session):
    first, second = session("--only", "tests,greedy"), session("--only", "beams-tdt,bundled,beams-rnnt")
    assert first + second == session()


def test_the_benchmark_takes_its_options(session):
    for name, command in benchmarks(session("--", "--batch", "2", "--repeats", "3")):
        args = read_options(command)
        plan = benchmark._checked_plan(args)
        assert (plan.batches, plan.repeats, args.json.stem) == ([2], 3, name)
        assert "label-looping" in plan.decoders, "what everything is compared with"
        assert all((ROOT / path).is_file() for path in args.audio or [])
        assert bool(args.audio) == bool(args.model)


def test_what_is_compared(session):
    plans = {name: benchmark._checked_plan(read_options(command)) for name, command in benchmarks(session())}
    assert {"label-looping", "frame-looping", "boosted"} <= set(plans["greedy"].decoders)
    for name in ("beams-rnnt", "beams-tdt"):
        assert plans[name].beams == [1, 2, 4, 8, 12] and plans[name].batches == [1, 4, 16, 32]
    assert {"alsd", "aes", "boosted"} <= set(plans["bundled-an4-rnnt-hybrid"].decoders)


def test_one_failure_is_the_status_and_stops_nothing(session):
    assert len(benchmarks(session(status=1))) == 3 + len(BUNDLED)


def test_an_unknown_part_is_rejected_by_name(session, capsys):
    with pytest.raises(SystemExit):
        session("--only", "tests,benchmark")
    assert "'benchmark' is not a part; parts: tests, greedy, bundled" in capsys.readouterr().err


def test_what_is_missing_is_named(script, monkeypatch, capsys):
    monkeypatch.undo()
    assert not script.report_missing({"no_such_module": "its-wheel", "torch": "torch"})
    assert "bring the wheels its-wheel in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("skips", "missing", "status"),
    [(0, "", 0), (0, "triton", 0), (2, "triton", 0), (2, "", 1), (2, "pytest_timeout", 1)],
)
def test_skipped_tests_are_no_success(script, monkeypatch, capsys, tmp_path, skips, missing, status):
    case = '<testcase><skipped type="pytest.skip" message="cuda-bindings is too old"/></testcase>'

    def run(command, session, name):
        (report,) = [option.partition("=")[2] for option in command if option.startswith("--junitxml=")]
        Path(report).write_text(f"<testsuites><testsuite><testcase/>{case * skips}</testsuite></testsuites>")
        return 0

    monkeypatch.setattr(script, "run", run)
    monkeypatch.setattr(script, "gpu_tests", lambda: ["tests/a/test_b.py", "tests/test_c.py"])
    monkeypatch.setattr(script, "is_missing", lambda module: module == missing)
    assert script.run_tests(script.Session(tmp_path, {}, [])) == status
    assert {path.name for path in tmp_path.iterdir()} == {"tests-a-test_b.xml", "tests-test_c.xml"}
    assert ("skipped 4: cuda-bindings is too old" in capsys.readouterr().out) == bool(skips)


def test_a_package_that_others_left_empty_is_missing(script, monkeypatch, tmp_path):
    (tmp_path / "emptied").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [script.is_missing(name) for name in ("emptied", "emptied.bindings", "torch.nn")] == [False, True, False]


def test_files_with_gpu_tests_are_found(script):
    """Those with the marker in them, or in a fixture that they use."""
    chosen = script.gpu_tests()
    assert {"tests/gpu/test_cuda_graphs.py", "tests/kernels/test_joint.py", "tests/benchmarks/test_decoding.py"} <= set(
        chosen
    )
    users = [path for path in (ROOT / "tests").rglob("test_*.py") if "kernel_device" in path.read_text()]
    for path in users:
        place = path.relative_to(ROOT)
        assert {str(place), *map(str, place.parents)} & set(chosen) or path == Path(__file__), place
