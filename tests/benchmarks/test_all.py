"""`make benchmark` runs benchmarks that are there."""

import sys
from pathlib import Path

from benchmarks import all as every


def test_those_that_run_together_are_there(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["all.py", "--oracle-python", "python"])
    chosen = [benchmark.name for benchmark in every.choose(every.parse_arguments())]
    assert chosen == ["encoder", "recognizer"]
    assert all((Path(every.__file__).parent / f"{name}.py").is_file() for name in chosen)
