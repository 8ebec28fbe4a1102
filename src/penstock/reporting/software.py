"""What a figure was measured with, and when: the sources' commit, the releases of packages, the date."""

import subprocess
from collections.abc import Iterable
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_SOURCES = Path(__file__).resolve().parents[1]


def commit() -> str | None:
    """Of the sources this package runs from, with a word where they have changed since; None outside a repository."""
    try:
        name = _git("rev-parse", "--short", "HEAD")
        return f"{name} with changes" if _git("status", "--porcelain", ".") else name
    except (OSError, subprocess.CalledProcessError):
        return None


def date_utc() -> str:
    """Now, to the minute."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_SOURCES), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
