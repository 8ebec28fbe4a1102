"""The verdict of a soak, its readings, and the command without a server."""

import json
import time
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import pytest

from loadtest import soak
from loadtest.fresh_server import ReadyServer
from loadtest.json_report import read_json, report_document, write_json
from loadtest.locust_run import processes_for
from loadtest.probe import Snapshot
from loadtest.processes import GENERATOR, SERVER, ProcessUse, Usage
from loadtest.soak_readings import Reading, SoakReadings
from loadtest.soak_verdict import soak_document, soak_lines, under_load
from penstock.errors import PenstockError
from tests.loadtest.test_summary import spoken, summary

MIB = 2**20
GROWING, FLAT = 30.0, 0.0


def window(**change) -> dict:
    found = summary([spoken(11.0, 12.0, text="ada lovelace"), spoken(13.0, text="charles", recording=1)])
    return found | {"streams": 8, "passed": True} | change


def readings(growth_mib_per_h: float = FLAT, descriptors_per_h: float = 0.0, every_s: float = 10.0) -> list[Reading]:
    """A minute before the load, an hour of 20 answers a second, a minute behind it."""
    found = []
    for i in range(int(3720 / every_s) + 1):
        now_s = i * every_s
        loaded_s = min(max(now_s - 60, 0.0), 3600.0)
        use = ProcessUse(
            1.0,
            90 * MIB,
            int((80 + growth_mib_per_h * loaded_s / 3600) * MIB),
            int(40 + i % 3 + descriptors_per_h * loaded_s / 3600),
        )
        found.append(Reading(1000.0 + now_s, 20 * loaded_s, {"encoder": use, SERVER: use}))
    return found


def document(found: list[Reading], window_: dict | None = None, warm_up_s: float = 600.0) -> dict:
    window_ = window_ or window()
    return soak_document(found, window_, window_["seconds"], warm_up_s, most_growth_mib_per_h=2.0)


def test_the_load_is_found_in_the_server_s_answers():
    loaded = under_load(readings())
    assert (loaded[0].time_s, loaded[-1].time_s) == pytest.approx((1060.0, 4660.0), abs=10)
    assert under_load(readings()[:4]) == under_load([]) == []


def test_a_server_that_stays_as_it_is_is_steady():
    found = document(readings())
    assert (found["is_steady"], found["reasons"], found["streams_lost"]) == (True, [], 0)
    assert found["seconds"] == pytest.approx(3000, abs=20)
    assert found["readings"] == pytest.approx(301, abs=2)
    encoder = found["processes"]["encoder"]
    assert encoder["pss_mib"] == pytest.approx(80)
    assert encoder["pss_slope_mib_per_h"] == pytest.approx(0, abs=1e-6)
    assert (encoder["descriptors"], encoder["descriptors_grown"]) == (42, 0)


def test_what_grows_in_the_warm_up_alone_does_not_count():
    grown = [Reading(r.time_s, r.answered, {"encoder": use(r, 500.0)}) for r in readings()]
    assert document(grown)["is_steady"]
    assert not document(grown, warm_up_s=0.0)["is_steady"]


def use(reading: Reading, until_s: float) -> ProcessUse:
    """100 MiB more in the first `until_s` seconds of the load."""
    loaded_s = min(max(reading.time_s - 1060.0, 0.0), until_s)
    return ProcessUse(1.0, 0, int((80 + 100 * loaded_s / until_s) * MIB), 40)


def test_memory_that_grows_is_named_with_its_slope():
    found = document(readings(GROWING))
    (first, second) = found["reasons"]
    assert first.startswith("encoder grows by 9")  # its mean
    assert "+30.00 ± 0.00 MiB an hour; 2 are allowed" in first and second.startswith(SERVER)
    assert not found["is_steady"]


def test_descriptors_that_grow_are_named():
    found = document(readings(descriptors_per_h=12.0))
    assert found["reasons"][0].startswith("encoder holds ")
    assert found["processes"]["encoder"]["descriptors_grown"] in (7, 8, 9)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"errors": {"count": 2}}, "2 streams were lost or refused"),
        ({"refusals": {"count": 1}}, "1 streams were lost or refused"),
        ({"unanswered_pieces": 3}, "3 pieces of audio were never answered"),
    ],
)
def test_a_stream_that_is_lost_is_no_steadiness(change, reason):
    assert document(readings(), window(**change))["reasons"] == [reason]


def test_a_process_that_went_away_is_named():
    found = readings()
    found[200] = Reading(found[200].time_s, found[200].answered, {SERVER: found[200].processes[SERVER]})
    assert document(found)["reasons"] == ["encoder was not there all the time"]


def test_too_short_a_test_says_so():
    assert "too few" in " ".join(document(readings(every_s=300.0))["reasons"])
    assert document([])["reasons"] == ["no process of the server was seen"]


def test_what_the_host_took_is_told():
    found = readings()
    stolen_s = [0.01 * i + (5.0 if i > 200 else 0.0) for i in range(len(found))]
    found = [replace(reading, stolen_cpu_s=taken_s) for reading, taken_s in zip(found, stolen_s, strict=True)]
    verdict = document(found)
    assert verdict["stolen_cores"] == pytest.approx(0.001 + 5.0 / 3600, rel=0.01)
    assert verdict["most_stolen_cores"] == pytest.approx(0.501)
    assert any("gave 0.00 of its cores to others on average, 0.50 at most" in line for line in soak_lines(verdict))
    assert not any("host" in line for line in soak_lines(document(readings())))


def test_memory_that_grows_with_a_backlog_is_told_from_a_leak():
    """Ten minutes in which the host takes a core and half of the answers fail to come, then twice as many; 20 MiB."""

    def disturbed(reading: Reading, leak_mib_per_h: float) -> Reading:
        held_s = min(max(reading.time_s - 3000.0, 0.0), 600.0)
        caught_up_s = min(max(reading.time_s - 3600.0, 0.0), 300.0)
        grown_mib = 20 * held_s / 600 + leak_mib_per_h * (reading.time_s - 1060.0) / 3600
        use = ProcessUse(1.0, 0, int((80 + grown_mib) * MIB), 40)
        answered = reading.answered - 10 * held_s + 20 * caught_up_s
        return Reading(reading.time_s, answered, {"encoder": use}, stolen_cpu_s=held_s)

    for leak_mib_per_h in (0.0, 12.0):
        verdict = document([disturbed(reading, leak_mib_per_h) for reading in readings()])
        assert not verdict["is_steady"]
        calm = verdict["undisturbed"]
        assert calm["seconds"] == pytest.approx(3000 - 900, abs=60)
        assert calm["growth_mib"]["encoder"] == pytest.approx(leak_mib_per_h * calm["seconds"] / 3600, abs=0.05)
        assert any(line.startswith("  undisturbed for 3") and "encoder +" in line for line in soak_lines(verdict))


def test_the_lines_say_the_verdict_first():
    lines = soak_lines(document(readings(GROWING), window(errors={"count": 1})))
    assert lines[0] == "NOT STEADY over 0.83 h after 600 s"
    assert lines[1].startswith("  encoder: ") and "MiB an hour, 42 descriptors (+0)" in lines[1]
    assert any(line.startswith("  2 streams, 1 lost; of 1 minutes ") for line in lines)
    assert "  because: 1 streams were lost or refused" in lines


def test_readings_are_taken_until_the_end_and_bad_ones_left_out():
    times = count(1.0)

    def take() -> Snapshot:
        time_s = next(times)
        uses = {"encoder": ProcessUse(1.0, 1, 1), GENERATOR: ProcessUse(1.0, 1, 1)}
        counters = None if time_s == 2.0 else {("asr", "request_success"): time_s}
        return Snapshot(Usage(time_s, 0.0, uses, stolen_cpu_s=2.0), counters)

    with SoakReadings(take, 0.01) as taken:
        deadline_s = time.monotonic() + 5
        while len(taken.readings) < 4:
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
    first, second = taken.readings[:2]
    assert (first.time_s, first.answered, list(first.processes)) == (1.0, 1.0, ["encoder"])
    assert (second.time_s, second.stolen_cpu_s) == (3.0, 2.0)
    so_many = len(taken.readings)
    time.sleep(0.03)
    assert len(taken.readings) == so_many


def test_readings_that_cannot_go_on_say_so():
    def take() -> Snapshot:
        raise FileNotFoundError("/proc/1/smaps_rollup")

    with (
        pytest.raises(PenstockError, match=r"ended after 0: FileNotFoundError: .*smaps_rollup"),
        SoakReadings(take, 0.01),
    ):
        time.sleep(0.03)
    with pytest.raises(ValueError, match="of its own"), SoakReadings(take, 0.01):
        raise ValueError("an error of its own goes first")


@pytest.fixture
def command(monkeypatch, tmp_path):
    """The command with a server and a load test that are not there: (exit status, report, the load test's words)."""
    asked = []

    @contextmanager
    def fresh_server(plan):
        yield ReadyServer("localhost:1", "localhost:2", "http://localhost:3/metrics", 4711, {"model": plan.model.name})

    class Taken:
        readings = readings(GROWING)

        def __init__(self, take, every_s):
            asked.append(every_s)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    def headless_report(target, processes, out, arguments):
        asked.append((target.url, processes, arguments))
        load_s = 60 * float(arguments[arguments.index("--minutes") + 1])
        is_ended_early = "--ended-early" in arguments
        seconds = load_s / 3 if is_ended_early else load_s
        write_json(out / "loadtest.json", report_document({}, {}, [window(seconds=seconds)]))
        if is_ended_early:
            raise KeyboardInterrupt
        if "--server-ended" in arguments:
            raise PenstockError("the server ended during the test")
        return read_json(out / "loadtest.json")

    for name, fake in (("fresh_server", fresh_server), ("SoakReadings", Taken), ("headless_report", headless_report)):
        monkeypatch.setattr(soak, name, fake)

    def run(*words: str):
        status = soak.main([*words, "--out", str(tmp_path)])
        return status, json.loads((tmp_path / "loadtest.json").read_text(encoding="utf-8")), asked

    return run


def test_the_command_runs_a_constant_load_and_writes_the_verdict(command, tmp_path, capsys):
    status, report, (every_s, load) = command("--streams", "48", "--protocol", "http", "--piece-ms", "560")
    assert (status, every_s) == (1, 10.0)
    options = ["--streams", "48", "--minutes", "60", "--protocol", "http", "--piece-ms", "560"]
    assert load == ("localhost:2", processes_for(48), options)
    assert report["soak"]["warm_up_s"] == 600
    assert not report["soak"]["is_steady"] and report["soak"]["most_growth_mib_per_h"] == 2.0
    assert "NOT STEADY" in capsys.readouterr().err
    table = (tmp_path / "soak.md").read_text(encoding="utf-8")
    (row,) = [line.split("|") for line in table.splitlines() if line.startswith("| encoder")]
    assert [cell.strip() for cell in row[3:7]] == ["+30.00 ± 0.00", "NO", "42", "+0"]
    assert "`python -m loadtest.soak --streams 48 --protocol http" in table
    assert report["circumstances"]["commit"] in table and report["circumstances"]["hardware"] in table
    header, first, *_, last = (tmp_path / "readings.csv").read_text(encoding="utf-8").splitlines()
    assert header == "seconds,answered,process,pss_mib,descriptors,stolen_cpu_s"
    assert first.startswith("0.0,0,") and last.startswith("3720.0,")
    assert float(last.split(",")[3]) == pytest.approx(float(first.split(",")[3]) + GROWING, abs=1.0)


def test_growth_that_is_allowed_passes(command):
    assert command("--most-growth", "40", "--minutes", "30")[0] == 0


def test_a_soak_that_is_ended_early_tells_what_it_saw_and_is_not_steady(command, capsys):
    status, report, _ = command("--most-growth", "40", "--ended-early")
    assert status == 1
    assert report["soak"]["reasons"] == ["it was ended after 20.0 of 60.0 minutes"]
    assert "because: it was ended after 20.0" in capsys.readouterr().err


def test_the_readings_of_a_soak_whose_server_ends_are_kept(command, tmp_path, capsys):
    assert command("--server-ended")[0] == 2
    assert "soak: error: the server ended" in capsys.readouterr().err
    assert (tmp_path / "readings.csv").read_text(encoding="utf-8").splitlines()[-1].startswith("3720.0,")


@pytest.mark.parametrize("words", [["--shape", "sweep"], ["--url", "localhost:1"]], ids=str)
def test_options_that_are_the_soak_s_own_are_refused(words, capsys):
    assert soak.main(words) == 2
    assert f"soak: error: {words[0]}: a soak is a constant load" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["--minutes", "0"], ["--streams", "0"], ["--warm-up-minutes", "60"], ["--warm-up-minutes", "-1"]],
    ids=str,
)
def test_wrong_usage_is_refused(command, words, capsys):
    with pytest.raises(SystemExit) as refused:
        command(*words)
    assert refused.value.code == 2
    assert words[0] in capsys.readouterr().err
