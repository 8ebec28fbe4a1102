"""The result of a soak, and the command."""

import json
from importlib.util import find_spec

import pytest

from loadtest.processes import GENERATOR, SERVER, Usage
from tests.helpers.loadtest_records import spoken, summary
from trials import soak
from trials.soak import soak_document


def test_memory_that_grows_fails_with_its_slope():
    """An hour, read every 10 s; 10 minutes are warm-up."""
    readings = [
        Usage(1000.0 + now_s, 0.0, pss_mib={"encoder": 80 + 30 * now_s / 3600, SERVER: 90.0, GENERATOR: now_s})
        for now_s in range(0, 3601, 10)
    ]
    window = summary([spoken(11.0, 12.0, text="ada lovelace")]) | {"streams": 8, "seconds": 3600.0}
    found = soak_document(readings, window, 3600.0, 600.0, max_growth_mib_per_h=2.0)
    assert found["reasons"] == ["encoder grows by 30.00 MiB per hour, 2 are allowed"]
    assert found["lines"][0].startswith("FAIL: ")
    assert "  because: encoder grows by 30.00 MiB per hour, 2 are allowed" in found["lines"]


@pytest.mark.nightly
@pytest.mark.server
@pytest.mark.skipif(find_spec("locust") is None, reason="needs locust (extra `loadtest`)")
def test_the_command_runs_a_constant_load_and_writes_the_result(tmp_path, capsys):
    """Whether it passes depends on what else the machine does."""
    load = ["--streams", "2", "--minutes", "0.2", "--stagger-seconds", "0.5", "--request-ms", "560"]
    status = soak.main([*load, "--warm-up-minutes", "0.05", "--out", str(tmp_path)])
    report = json.loads((tmp_path / "loadtest.json").read_text(encoding="utf-8"))
    assert status == int(not report["soak"]["passed"])
    assert {"encoder", SERVER} <= report["soak"]["processes"].keys()
    assert (report["soak"]["streams_lost"], report["soak"]["warm_up_s"]) == (0, 3.0)
    assert report["circumstances"]["command"].startswith("python -m trials.soak --streams 2 --minutes 0.2")
    for text in (capsys.readouterr().out, (tmp_path / "loadtest.md").read_text(encoding="utf-8")):
        assert "  encoder: " in text
