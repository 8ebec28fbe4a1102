"""Finds the Triton language: the package `triton`, which many installations do not have."""

import importlib
import importlib.util


def why_no_triton() -> str | None:
    """Returns why the package `triton` (the Triton language) cannot be used, or None.

    A folder of that name, such as the one of tritonserver, must not be taken for the package.
    """
    try:
        language = importlib.import_module("triton.language") if importlib.util.find_spec("triton") else None
    except ImportError as error:
        return f"the package `triton` (the Triton language) does not load: {error}"
    return None if hasattr(language, "dot") else "the package `triton` (the Triton language) is not installed"
