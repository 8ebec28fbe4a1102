"""The parser of all command lines. It imports little: a probe of a server runs every few seconds."""

import argparse
import sys
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage text; its subcommands' parsers are of the same class.

    A flag is written in full: the next version may have another one that begins like its abbreviation.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**(settings | {"allow_abbrev": False}))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Ends with an error for an unknown flag, which names the nearest one."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            import difflib

            flag = unknown[0].partition("=")[0]
            near = difflib.get_close_matches(flag, self._option_string_actions, 1)
            self.error(f"unrecognized arguments: {' '.join(unknown)}" + (f"; the nearest is {near[0]}" if near else ""))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Exits with status 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Help and version; unlike argparse's own, raises OSError where they cannot be written."""
        file = file or sys.stderr
        file.write(message)
        file.flush()
