"""Installs lock files and, where a build of it is named, torch. For the build stages of the Dockerfile.

pip's own settings come from the environment: index, constraints (locks/pins.txt), and PIP_PYTHON, the environment to
install into.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Exit status of pip."""
    parser = argparse.ArgumentParser(description="Installs lock files, and torch at the version of locks/pins.txt.")
    parser.add_argument("locks", nargs="+", type=Path, help="requirements with hashes, complete")
    parser.add_argument(
        "--torch-build", metavar="LABEL", help='cpu, cu130 ..., "" for the index\'s own; none: no torch'
    )
    args = parser.parse_args()
    files = [word for path in args.locks for word in ("-r", str(path))]
    status = _pip_install("--no-deps", "--require-hashes", *files)
    if status == 0 and args.torch_build is not None:
        _install_torch(args.torch_build)
    return status


def _install_torch(build: str) -> None:
    """Alone: its builds differ in their hashes. Leaves out its headers and own tests."""
    if _pip_install(f"torch=={_torch_version()}{'+' if build else ''}{build}") != 0:
        sys.exit(
            f"torch build {build!r} is not offered here. Name a place that has it with the build argument "
            "PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS, or another build with TORCH_BUILD (empty: the index's own)."
        )
    for torch in Path(os.environ["PIP_PYTHON"]).parents[1].glob("lib/python3*/site-packages/torch"):
        for folder in ("include", "test"):
            shutil.rmtree(torch / folder, ignore_errors=True)


def _torch_version() -> str:
    lines = Path("locks/pins.txt").read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix("torch==") for line in lines if line.startswith("torch=="))


def _pip_install(*arguments: str) -> int:
    return subprocess.run(["pip", "install", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
