"""Hints for installing what an extra of pyproject.toml needs, in any environment with Penstock; and what is missing."""

import importlib
import importlib.metadata
import importlib.util
import re

_NAME = "penstock"
_OF_EXTRA = re.compile(r"""\s*;\s*extra\s*==\s*["'](.+)["']$""")
_OWN_EXTRAS = re.compile(rf"{_NAME}\[(.+)\]$")


def install_command(extra: str) -> str:
    """The pip command for the packages of `extra`: it names them, because Penstock itself is on no package index.

    Without metadata, as in a source tree that is not installed, the command is that of a checkout.
    """
    try:
        requirements = _requirements(extra)
    except importlib.metadata.PackageNotFoundError:
        requirements = []
    return f"pip install {' '.join(repr(each) for each in requirements) or repr(f'.[{extra}]')}"


def why_no_triton() -> str | None:
    """Returns why the package `triton` (the Triton language) cannot be used, or None.

    A folder of that name, such as the one of tritonserver, must not be taken for the package.
    """
    try:
        language = importlib.import_module("triton.language") if importlib.util.find_spec("triton") else None
    except ImportError as error:
        return f"the package `triton` (the Triton language) does not load: {error}"
    return None if hasattr(language, "dot") else "the package `triton` (the Triton language) is not installed"


def _requirements(extra: str) -> list[str]:
    """Requirements of `extra` without those on Penstock's own extras, which are resolved."""
    requirements = []
    for line in importlib.metadata.requires(_NAME) or ():
        requirement, marker = _OF_EXTRA.sub("", line), _OF_EXTRA.search(line)
        if marker is None or marker[1] != extra:
            continue
        own = _OWN_EXTRAS.match(requirement)
        requirements += [each for name in own[1].split(",") for each in _requirements(name)] if own else [requirement]
    return list(dict.fromkeys(requirements))
