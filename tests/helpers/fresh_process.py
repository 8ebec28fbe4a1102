"""Runs what forks in a process of its own.

A fork copies locks that other threads hold, such as those of gRPC in the tests before, and its child waits forever.
"""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

Result = TypeVar("Result")


def in_fresh_process(function: Callable[..., Result], *arguments: object) -> Result:
    """The result of a module's function, or what it raises."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def run_penstock(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command line with its output."""
    command = [sys.executable, "-m", "penstock.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
