"""`make help` lists every target, and a Python that cannot work is rejected before anything is downloaded."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_help_lists_every_target_with_its_time_and_a_line():
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    note, *lines = make("help").stdout.splitlines()
    listed = [re.split(r" {2,}", line) for line in lines]
    assert note.startswith("Times are rough")
    assert ["help", "programs", *(name for name, _, _ in listed)] == phony.split()
    assert all(
        re.fullmatch(r"-|seconds|hours|\d+ (min|h)( to \d+ (min|h))?|(2 x )?MINUTES", time) for _, time, _ in listed
    )


@pytest.mark.parametrize("target", ["benchmark", "trials"])
def test_help_lists_what_a_target_runs_by_name(target):
    (line,) = (line for line in make("help").stdout.splitlines() if line.startswith(target))
    names = re.search(r"NAME: ([a-z, -]+)", line)[1].split(", ")
    assert sorted(names) == re.findall(rf"^{target}-(\S+) = ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    for name in names:
        dry = make("--dry-run", target, f"NAME={name}")
        assert dry.returncode == 0 and name.split("-")[0].rstrip("s") in dry.stdout
        assert ("haproxy:" in dry.stdout) == (name in ("chaos", "edge", "faults", "fleet"))
    wrong = make(target, "NAME=other")
    assert wrong.returncode != 0 and f"make {target} knows no NAME=other" in wrong.stderr and not wrong.stdout


@pytest.fixture
def other_python(tmp_path):
    """Makes an interpreter that takes itself for another version."""

    def of_version(version: tuple[int, int]) -> Path:
        path = tmp_path / "python"
        code = f"import sys; sys.version_info = {(*version, 1)}; exec(sys.argv[1])"
        path.write_text(f'#!/bin/sh\n[ "$1" = -c ] || exit 9\nexec {sys.executable} -c "{code}" "$2"\n')
        path.chmod(0o755)
        return path

    return of_version


@pytest.mark.parametrize(
    ("version", "is_supported"), [((3, 9), False), ((3, 10), True), ((3, 13), True), ((3, 14), False)]
)
def test_the_version_of_python_is_checked_first(other_python, tmp_path, version, is_supported):
    python = other_python(version)
    done = make("setup", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}")
    assert done.returncode != 0
    assert not (tmp_path / "venv").exists()
    message = f"Penstock needs Python 3.10 to 3.13, and {python} is {version[0]}.{version[1]}. Name another one: make"
    assert (message in done.stderr) != is_supported
    assert ("-m venv" in done.stdout) == is_supported
