"""The result of a soak, its readings, and the command without a server."""

import json
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from loadtest.locust_run import ReadyServer, processes_for
from loadtest.processes import GENERATOR, SERVER, Usage
from loadtest.report import report_document, write_report
from penstock.errors import RunError
from penstock.serving.launch import Ports
from tests.helpers.loadtest_records import spoken, summary
from trials import soak
from trials.soak import Readings, soak_document

LOAD_S, WARM_UP_S = 3600.0, 600.0


def window(**change) -> dict:
    found = summary([spoken(11.0, 12.0, text="ada lovelace"), spoken(13.0, text="charles", recording=1)])
    return found | {"streams": 8, "seconds": LOAD_S} | change


def readings(growth_mib_per_h: float = 0.0, warm_up_mib: float = 0.0, every_s: float = 10.0) -> list[Usage]:
    """An hour; `warm_up_mib` more memory is taken evenly in the first ten minutes."""
    found = []
    for i in range(int(LOAD_S / every_s) + 1):
        now_s = i * every_s
        size = 80 + growth_mib_per_h * now_s / 3600 + warm_up_mib * min(1.0, now_s / WARM_UP_S)
        found.append(Usage(1000.0 + now_s, 0.0, pss_mib={"encoder": size, SERVER: 90.0, GENERATOR: now_s}))
    return found


def document(found: list[Usage], window_: dict | None = None, warm_up_s: float = WARM_UP_S) -> dict:
    return soak_document(found, window_ or window(), LOAD_S, warm_up_s, max_growth_mib_per_h=2.0)


def test_flat_memory_and_no_loss_pass():
    found = document(readings())
    assert (found["passed"], found["reasons"], found["streams_lost"], found["late_chunks"]) == (True, [], 0, 0)
    assert found["seconds"] == pytest.approx(3000)
    assert set(found["processes"]) == {"encoder", SERVER}  # the load generator keeps records: its memory grows
    assert found["processes"]["encoder"] == pytest.approx({"pss_mib": 80, "slope_mib_per_h": 0}, abs=1e-6)
    assert found["lines"][0] == "PASS: 50.0 minutes after 10.0 of warm-up"
    assert "  0 of 2 streams lost, 0 of 3 chunks late, 0 of 2 recordings with several texts" in found["lines"]


def test_memory_that_grows_fails_with_its_slope():
    found = document(readings(30.0))
    assert found["reasons"] == ["encoder grows by 30.00 MiB per hour, 2 are allowed"]
    assert found["lines"][0].startswith("FAIL: ")
    assert "  because: encoder grows by 30.00 MiB per hour, 2 are allowed" in found["lines"]


def test_a_recording_whose_text_changes_fails_the_soak():
    words = window()["words"] | {"recordings_with_several_texts": 1}
    assert document(readings(), window(words=words))["reasons"] == ["1 of 2 recordings with several texts"]


def test_a_reading_that_fails_is_an_error():
    def read() -> Usage:
        raise FileNotFoundError("/proc/1/smaps_rollup")

    with pytest.raises(RunError, match=r"failed: FileNotFoundError: .*smaps_rollup"), Readings(read, 0.01):
        time.sleep(0.03)
    with pytest.raises(ValueError, match="raised first"), Readings(read, 0.01):
        raise ValueError("raised first")


@pytest.fixture
def command(monkeypatch, tmp_path):
    """The command with a fake server and load test; returns exit status, report and the load test's arguments."""
    calls = []

    @contextmanager
    def fresh_server(plan):
        server = SimpleNamespace(ports=Ports(http=2, grpc=1, metrics=3), process_id=4711)
        yield ReadyServer(server, {"model": plan.model.name})

    class FakeReadings:
        readings = readings(30.0)

        def __init__(self, read, every_s):
            calls.append(every_s)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    def headless_report(target, processes, out, arguments):
        calls.append((target.url, processes, arguments))
        load_s = 60 * float(arguments[arguments.index("--minutes") + 1])
        is_ended_early = "--ended-early" in arguments
        seconds = load_s / 3 if is_ended_early else load_s
        write_report(out / "loadtest.json", report_document({}, {}, [window(seconds=seconds)]))
        if is_ended_early:
            raise KeyboardInterrupt
        if "--server-ended" in arguments:
            raise RunError("the server ended during the test")
        return json.loads((out / "loadtest.json").read_text(encoding="utf-8"))

    for name, fake in (
        ("fresh_server", fresh_server),
        ("Readings", FakeReadings),
        ("headless_report", headless_report),
    ):
        monkeypatch.setattr(soak, name, fake)

    def run(*words: str):
        status = soak.main([*words, "--out", str(tmp_path)])
        return status, json.loads((tmp_path / "loadtest.json").read_text(encoding="utf-8")), calls

    return run


def test_the_command_runs_a_constant_load_and_writes_the_result(command, tmp_path, capsys):
    status, report, (every_s, started) = command("--streams", "48", "--protocol", "http", "--request-ms", "560")
    assert (status, every_s) == (1, 10.0)
    load = ["--streams", "48", "--minutes", "60", "--protocol", "http", "--target", "direct"]
    options = [*load, "--request-ms", "560"]
    assert started == ("127.0.0.1:2", processes_for(48, "direct"), options)
    assert report["soak"]["warm_up_s"] == 600
    assert not report["soak"]["passed"] and report["soak"]["max_growth_mib_per_h"] == 2.0
    assert report["circumstances"]["command"].startswith("python -m trials.soak --streams 48 --protocol http")
    assert "encoder: 110.0 MiB, +30.00 MiB per hour" in capsys.readouterr().out
    assert "+30.00 MiB per hour" in (tmp_path / "loadtest.md").read_text(encoding="utf-8")
    assert (tmp_path / "readings.csv").read_text(encoding="utf-8").startswith("seconds,process,pss_mib\n")


@pytest.mark.parametrize(
    "words", [["--minutes", "0"], ["--streams", "0"], ["--warm-up-minutes", "60"], ["--warm-up-minutes", "-1"]], ids=str
)
def test_wrong_usage_is_rejected(command, words, capsys):
    with pytest.raises(SystemExit) as rejected:
        command(*words)
    assert rejected.value.code == 2
    assert words[0] in capsys.readouterr().err
