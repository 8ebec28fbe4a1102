"""The command that installs an extra's packages: it never names Penstock, which is on no package index."""

import importlib.metadata
import re
from pathlib import Path

import pytest

from penstock.extras import install_command

ROOT = Path(__file__).parents[1]


@pytest.fixture
def metadata(monkeypatch):
    """Requirements as a wheel's metadata states them."""
    lines = [
        "torch>=2.8",
        'jiwer>=4; extra == "evaluate"',
        "numpy<2; extra == 'server'",
        'penstock[evaluate,server]; extra == "all"',
        'jiwer>=4; extra == "all"',
        'psutil>=6; extra == "all"',
    ]
    monkeypatch.setattr(importlib.metadata, "requires", {"penstock": lines}.__getitem__)


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("evaluate", "pip install 'jiwer>=4'"),
        ("all", "pip install 'jiwer>=4' 'numpy<2' 'psutil>=6'"),
        ("unknown", "pip install '.[unknown]'"),
    ],
)
def test_packages_of_an_extra_are_named_once(metadata, extra, command):
    assert install_command(extra) == command


def test_no_text_tells_to_install_penstock_from_an_index():
    named = re.compile(r"pip install[^\n]* ['\"]?penstock(-client)?(\[|['\"`]|\s|$)")
    folders = ("src", "client/src", "benchmarks", "loadtest", "docs", "recipes", "scripts")
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*.*") if path.suffix in (".py", ".md", ".sh")
    ]
    files += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "client" / "README.md"]
    assert not [str(path) for path in files if named.search(path.read_text(encoding="utf-8"))]
