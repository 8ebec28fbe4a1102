"""Installs what pyproject.toml declares, without the program itself. For the build stages of the Dockerfile.

pip's own settings come from the environment: index, constraints, and PIP_PYTHON, the environment to install into.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import tomllib


def main() -> int:
    """Exit status of pip."""
    parser = argparse.ArgumentParser(description="Installs the dependencies of pyproject.toml in this directory.")
    parser.add_argument("--torch-build", default="", metavar="LABEL", help="cpu, cu130 ...: that build of torch alone")
    parser.add_argument("--without-torch", action="store_true", help="the other dependencies")
    parser.add_argument("--extra", metavar="NAME", help="those of this extra as well")
    args = parser.parse_args()
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [*project["dependencies"], *(_extra(project, args.extra) if args.extra else ())]
    if args.without_torch:
        return _pip_install([requirement for requirement in requirements if _name(requirement) != "torch"])
    _install_torch(args.torch_build)
    return _pip_install(requirements)


def _install_torch(build: str) -> None:
    """First and alone: what else depends on torch must not choose its build. Leaves out its headers and own tests."""
    if _pip_install([f"torch=={_pinned('torch')}{'+' if build else ''}{build}"]) != 0:
        sys.exit(
            f"torch build {build!r} is not offered here. Name a place that has it with the build argument "
            "PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS, or another build with TORCH_BUILD (empty: the index's own)."
        )
    for torch in Path(os.environ["PIP_PYTHON"]).parents[1].glob("lib/python3*/site-packages/torch"):
        for folder in ("include", "test"):
            shutil.rmtree(torch / folder, ignore_errors=True)


def _extra(project: dict, name: str) -> list[str]:
    """Requirements of an extra; where it names another extra of the project itself, those of that one instead."""
    requirements = []
    for requirement in project["optional-dependencies"][name]:
        own = re.fullmatch(rf"{project['name']}\[(.+)\]", requirement)
        requirements += _extra(project, own[1]) if own else [requirement]
    return requirements


def _pinned(package: str) -> str:
    lines = Path("constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix(f"{package}==") for line in lines if line.startswith(f"{package}=="))


def _name(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0]


def _pip_install(requirements: list[str]) -> int:
    return subprocess.run(["pip", "install", *requirements], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
