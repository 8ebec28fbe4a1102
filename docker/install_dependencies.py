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

AUTO, DEFAULT = "auto", "default"
DEFAULT_SIZE = "4.7 GB installed, instead of 0.8 GB"
"""torch 2.13.0 with its CUDA packages, and its CPU build."""
REMEDY = (
    "Name a place that has it with the build argument PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS, or another build with "
    f"TORCH_BUILD ({DEFAULT}: the index's own)."
)


def main() -> int:
    """Exit status of pip."""
    parser = argparse.ArgumentParser(description="Installs lock files, and torch at the version of locks/pins.txt.")
    parser.add_argument("locks", nargs="+", type=Path, help="requirements with hashes, complete")
    parser.add_argument(
        "--torch-build",
        metavar="LABEL",
        help=f"cpu, cu130 ...; {DEFAULT}: the index's own; {AUTO}: cpu where offered, else {DEFAULT}; none: no torch",
    )
    args = parser.parse_args()
    files = [word for path in args.locks for word in ("-r", str(path))]
    status = _pip_install("--no-deps", "--require-hashes", *files)
    if status == 0 and args.torch_build is not None:
        _install_torch(args.torch_build)
    _remove_what_only_builds_and_tests_use(Path(os.environ["PIP_PYTHON"]).parents[1])
    return status


def _install_torch(build: str) -> None:
    """Alone: its builds differ in their hashes."""
    choices = ["cpu", DEFAULT] if build == AUTO else [build]
    for choice in choices:
        label = "" if choice == DEFAULT else f"+{choice}"
        if _pip_install(f"torch=={_torch_version()}{label}") == 0:
            break
        print(f"torch build {choice!r} is not offered here. {REMEDY}", flush=True)
        if choice != choices[-1]:
            print(f"Taking the index's own build, which may be the one for CUDA: {DEFAULT_SIZE}.", flush=True)
    else:
        sys.exit(1)


def _remove_what_only_builds_and_tests_use(environment: Path) -> None:
    """The packages' own tests, and torch's headers and programs, of which it starts one itself."""
    for packages in environment.glob("lib/python3*/site-packages"):
        torch = packages / "torch"
        for folder in [*packages.rglob("tests"), torch / "test", torch / "include"]:
            shutil.rmtree(folder, ignore_errors=True)
        for program in torch.glob("bin/*"):
            if program.is_file() and program.name != "torch_shm_manager":
                program.unlink()


def _torch_version() -> str:
    lines = Path("locks/pins.txt").read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix("torch==") for line in lines if line.startswith("torch=="))


def _pip_install(*arguments: str) -> int:
    return subprocess.run(["pip", "install", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
