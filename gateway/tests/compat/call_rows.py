"""Printed rows of calls; imports nothing but the standard library, for each environment that makes calls."""

import json
from collections.abc import Callable


def print_rows(calls: dict[str, Callable[[], str]]) -> None:
    """Prints a JSON object for each call: its name, and the words or the error."""
    for name, call in calls.items():
        try:
            found = {"name": name, "words": call()}
        except Exception as error:  # noqa: BLE001 - a row of the table
            found = {"name": name, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), flush=True)
