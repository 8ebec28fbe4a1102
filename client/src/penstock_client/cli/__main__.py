"""The entry of `penstock-client` and of `python -m penstock_client.cli`."""

import sys
from collections.abc import Callable

from penstock_common.entry import run_command


def main() -> int:
    """Runs the command; returns the exit status."""
    return run_command(_load)


def _load() -> Callable[[], int]:
    from penstock_client.cli.main import main as run

    return run


if __name__ == "__main__":
    sys.exit(main())
