"""Lists the benchmarks. Each runs as `python -m benchmarks.NAME`; `--help` shows its options."""

import ast
from pathlib import Path

NAMES = (
    "all",
    "beam_lag",
    "compare",
    "decoding",
    "encoder",
    "fusion_weights",
    "host_budget",
    "recognizer",
    "server",
    "wfst",
)


def main() -> None:
    """Prints name and first docstring line of every benchmark, without importing it."""
    print(__doc__)
    for name in NAMES:
        source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        print(f"\n  {name}\n      {ast.get_docstring(ast.parse(source)).splitlines()[0]}")


if __name__ == "__main__":
    main()
