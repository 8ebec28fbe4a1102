"""`python -m benchmarks` lists every benchmark; `make benchmark` runs some."""

import sys
from pathlib import Path

from benchmarks import __main__ as listing
from benchmarks import all as every

FOLDER = Path(listing.__file__).parent


def test_every_benchmark_is_listed(capsys):
    listing.main()
    text = capsys.readouterr().out
    found = {path.stem for path in FOLDER.glob("[a-z]*.py") if 'if __name__ == "__main__"' in path.read_text()}
    assert set(listing.NAMES) == found
    assert all(f"\n  {name}\n      " in text for name in listing.NAMES)


def test_those_that_run_together_are_there(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["all.py", "--oracle-python", "python"])
    chosen = [benchmark.name for benchmark in every.choose(every.parse_arguments())]
    assert chosen == ["encoder", "recognizer", "server"]
    assert all((FOLDER / f"{name}.py").is_file() for name in chosen)
