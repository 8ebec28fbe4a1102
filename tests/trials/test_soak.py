"""The result of a soak, its readings, and the command without a server."""

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from loadtest.locust_run import ReadyServer, processes_for
from loadtest.processes import GENERATOR, SERVER, Usage
from loadtest.report import report_document, write_report
from penstock.serving.launch import Ports
from tests.helpers.loadtest_records import spoken, summary
from trials import soak
from trials.soak import soak_document

LOAD_S, WARM_UP_S = 3600.0, 600.0


def window() -> dict:
    found = summary([spoken(11.0, 12.0, text="ada lovelace"), spoken(13.0, text="charles", recording=1)])
    return found | {"streams": 8, "seconds": LOAD_S}


def readings(growth_mib_per_h: float = 0.0) -> list[Usage]:
    """An hour, every 10 s."""
    return [
        Usage(
            1000.0 + now_s,
            0.0,
            pss_mib={"encoder": 80 + growth_mib_per_h * now_s / 3600, SERVER: 90.0, GENERATOR: now_s},
        )
        for now_s in range(0, int(LOAD_S) + 1, 10)
    ]


def document(found: list[Usage]) -> dict:
    return soak_document(found, window(), LOAD_S, WARM_UP_S, max_growth_mib_per_h=2.0)


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


class FakeReadings:
    readings = readings(30.0)

    def __init__(self, read, every_s):
        assert every_s == 10.0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_the_command_runs_a_constant_load_and_writes_the_result(monkeypatch, tmp_path, capsys):
    """With a fake server and load test."""
    started = []

    @contextmanager
    def fresh_server(plan):
        server = SimpleNamespace(ports=Ports(http=2, grpc=1, metrics=3), process_id=4711)
        yield ReadyServer(server, {"model": plan.model.name})

    def headless_report(target, processes, out, arguments):
        started.append((target.url, processes, arguments))
        write_report(out / "loadtest.json", report_document({}, {}, [window()]))
        return json.loads((out / "loadtest.json").read_text(encoding="utf-8"))

    monkeypatch.setattr(soak, "fresh_server", fresh_server)
    monkeypatch.setattr(soak, "Readings", FakeReadings)
    monkeypatch.setattr(soak, "headless_report", headless_report)
    words = ["--streams", "48", "--protocol", "http", "--request-ms", "560", "--out", str(tmp_path)]
    assert soak.main(words) == 1
    report = json.loads((tmp_path / "loadtest.json").read_text(encoding="utf-8"))
    load = ["--streams", "48", "--minutes", "60", "--protocol", "http"]
    assert started == [("127.0.0.1:2", processes_for(48, "direct"), [*load, "--request-ms", "560"])]
    assert report["soak"]["warm_up_s"] == 600
    assert not report["soak"]["passed"] and report["soak"]["max_growth_mib_per_h"] == 2.0
    assert report["circumstances"]["command"].startswith("python -m trials.soak --streams 48 --protocol http")
    assert "encoder: 110.0 MiB, +30.00 MiB per hour" in capsys.readouterr().out
    assert "+30.00 MiB per hour" in (tmp_path / "loadtest.md").read_text(encoding="utf-8")
    assert (tmp_path / "readings.csv").read_text(encoding="utf-8").startswith("seconds,process,pss_mib\n")
