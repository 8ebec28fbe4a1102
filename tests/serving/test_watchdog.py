"""A lost model is detected by its process, a stalled one by a probe without an answer; a slow one is left alone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from penstock import runtime
from penstock.serving import watchdog
from penstock.serving.health import Health
from penstock.serving.watchdog import ModelEnds, Watchdog, find_model_processes

WELL, ILL = Health(True, "all models answered"), Health(False, "Stub process is not healthy")
IDLE = "import time; time.sleep(60)"
BUSY = "while True: pass"


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    limits = {"POLL_S": 0.02, "SECOND_PROBE_S": 0.02, "PROBE_INTERVAL_S": 0.05, "PROBE_TIMEOUT_S": 0.2}
    for name, value in limits.items():
        monkeypatch.setattr(watchdog, name, value)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str, str], subprocess.Popen]]:
    """Starts a child process that looks like a model of that name."""
    started = []

    def run(name: str, program: str = IDLE) -> subprocess.Popen:
        script = tmp_path / name / "1" / "model.py"
        script.parent.mkdir(parents=True)
        script.write_text(program)
        process = subprocess.Popen(
            [str(tmp_path / "triton_python_backend_stub"), str(script)], executable=sys.executable
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


def watch(answer: Callable[[str, float], Health] = lambda *_: WELL) -> Watchdog:
    return Watchdog(os.getpid(), "127.0.0.1:1", answer)


def loss_within(watching: Watchdog, seconds: float = 60.0) -> str | None:
    deadline = time.monotonic() + seconds
    while watching.loss is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return watching.loss


def model_names() -> dict[int, str]:
    return {process.pid: name for process, name in find_model_processes(os.getpid()).items()}


def test_models_are_found_by_their_command(start):
    processes = {start(name).pid: name for name in ("encoder", "decoder")}
    subprocess.Popen([sys.executable, "-c", ""]).wait()
    deadline = time.monotonic() + 60  # a child is itself only after its exec
    while model_names() != processes and time.monotonic() < deadline:
        time.sleep(0.01)
    assert model_names() == processes
    assert find_model_processes(1) == {}


def started(start, program: str = IDLE) -> subprocess.Popen:
    process = start("encoder", program)
    while process.pid not in model_names():
        time.sleep(0.01)
    return process


@pytest.mark.parametrize(
    ("number", "kills", "end"),
    [
        (signal.SIGABRT, 5, "ended by SIGABRT"),
        (signal.SIGKILL, 4, "ended by SIGKILL"),
        (signal.SIGKILL, 5, "ended by SIGKILL for lack of memory (oom_kill 4 -> 5)"),
        (None, 4, "ended with exit status 3"),
    ],
)
def test_a_lost_model_is_named_with_its_end(start, monkeypatch, tmp_path, number, kills, end):
    monkeypatch.setattr(watchdog, "memory_kills", lambda: 4)
    monkeypatch.setattr(runtime, "memory_kills", lambda: kills)
    go = tmp_path / "go"
    process = started(start, f"import os\nwhile not os.path.exists({str(go)!r}): pass\nraise SystemExit(3)")
    ends = ModelEnds(os.getpid())
    assert ends.by_model() == {}
    with watch() as watching:
        process.send_signal(number) if number else go.touch()
        assert loss_within(watching) == f"model encoder (process {process.pid}) has {end}"
    assert ends.by_model() == {"encoder": end}
    process.wait()
    assert ends.by_model() == {"encoder": end}, "also when its parent has waited for it"
    unseen = "ended for lack of memory (oom_kill 4 -> 5)" if kills == 5 else "ended"
    assert ends.of(next(iter(ends._models))) == unseen


def test_a_model_that_ended_before_it_was_seen_has_an_end_without_a_name(tmp_path):
    stub = tmp_path / "triton_python_backend_stub"
    stub.symlink_to(sys.executable)
    ends = ModelEnds(os.getpid())
    with subprocess.Popen([str(stub), "-c", "import os\nos.abort()"]) as process:
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert ends.by_model() == {"": "ended by SIGABRT"}
        assert ModelEnds(os.getpid()).by_model() == {}, "it is one of an earlier load"


def test_a_stopped_model_is_lost_after_a_while_and_not_before(start, monkeypatch):
    process, now = started(start), SimpleNamespace(s=0.0)
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: now.s))
    watching = watch()

    def loss_after(seconds: float, number: signal.Signals) -> str | None:
        now.s += seconds
        process.send_signal(number)
        while (psutil.Process(process.pid).status() == psutil.STATUS_STOPPED) != (number == signal.SIGSTOP):
            time.sleep(0.01)
        return watching._processes.lost_process()

    assert loss_after(0, signal.SIGSTOP) is None
    assert loss_after(1.9, signal.SIGSTOP) is None
    assert loss_after(0, signal.SIGCONT) is None
    assert loss_after(1, signal.SIGSTOP) is None
    assert loss_after(2, signal.SIGSTOP) == f"model encoder (process {process.pid}) has been stopped"


def test_one_bad_answer_is_not_enough(start):
    started(start)
    answers = iter([ILL, WELL, ILL, WELL])
    with watch(lambda *_: next(answers, WELL)) as watching:
        assert loss_within(watching, 0.6) is None


def test_two_bad_answers_in_a_row_are(start):
    started(start)
    with watch(lambda *_: ILL) as watching:
        assert loss_within(watching) == f"the models no longer serve: {ILL.reason}"


def no_answer(_: str, timeout_s: float) -> Health:
    time.sleep(timeout_s)
    return Health(False, f"no answer within {timeout_s:g} s")


def test_no_answer_of_idle_models_is_a_loss(start):
    started(start)
    with watch(no_answer) as watching:
        assert "no answer" in loss_within(watching)


def test_no_answer_of_busy_models_is_none(start):
    started(start, BUSY)
    with watch(no_answer) as watching:
        assert loss_within(watching, 1.0) is None
