"""Writes a bundled demonstration model as a .nemo file, with the same weights. Needs NeMo (`oracle`).

    python scripts/export_nemo.py models/an4-rnnt-hybrid build/an4-rnnt-hybrid.nemo

For `benchmark_recognizer.py --with-nemo`, `export_sherpa.py`, or training on.
"""

import argparse
import sys
from pathlib import Path

from nemo.utils import logging

from penstock.checkpoint import Checkpoint
from penstock.errors import PenstockError
from penstock.training.nemo_export import export_nemo


def main(arguments: list[str] | None = None) -> int:
    """Command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", metavar="BUNDLE", type=Path)
    parser.add_argument("nemo", metavar="FILE.nemo", type=Path)
    chosen = parser.parse_args(arguments)
    logging.setLevel("ERROR")
    try:
        chosen.nemo.parent.mkdir(parents=True, exist_ok=True)
        export_nemo(Checkpoint(chosen.bundle), chosen.nemo)
    except (PenstockError, OSError) as error:
        print(f"export_nemo: error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {chosen.nemo}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
