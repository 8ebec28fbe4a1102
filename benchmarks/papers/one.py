"""Measures one paper's tables, for the command: `python -m benchmarks.papers.one PAPER SETTINGS RESULT COMMAND`."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from benchmarks.papers.settings import Settings
from benchmarks.results import environment
from penstock.reporting import write_report
from penstock.runtime import prepare_process


class Paper(NamedTuple):
    """A module with `rows(settings)` and `tables(rows)`."""

    name: str
    has_nemo: bool

    def module(self) -> ModuleType:
        """Imports it."""
        return import_module(f"benchmarks.papers.{self.name}")


PAPERS = {
    "000": Paper("label_looping", True),
    "001": Paper("cuda_graphs", True),
    "002": Paper("decoding_graphs", False),
    "003": Paper("beam_search", True),
    "004": Paper("factorized", False),
}


def main() -> None:
    """Writes the rows as they come: a run that ends early keeps what it has."""
    paper, text, result, command = sys.argv[1:]
    settings = Settings.load(text)
    prepare_process(settings.threads)
    document = environment(settings.threads, settings.device) | {"command": command, "rows": []}
    for row in PAPERS[paper].module().rows(settings):
        document["rows"].append(row)
        write_report(Path(result), document)
    write_report(Path(result), document)


if __name__ == "__main__":
    main()
