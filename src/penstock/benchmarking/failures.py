"""What a decoder may fail with at the cost of its own figures alone. Knows no decoder."""

import sys

_IN_USE = (RuntimeError, ValueError, TypeError, LookupError, AssertionError)


def setup_failures() -> tuple[type[Exception], ...]:
    """While it is built and captured: errors of the device and of kernels that do not compile.

    To be asked where the error is caught: the GPU language is never imported for this, for it reads its environment
    when it first is.
    """
    language = sys.modules.get("triton.errors")  # there if a kernel was ever made
    return (RuntimeError,) if language is None else (RuntimeError, language.TritonError)


def failures() -> tuple[type[Exception], ...]:
    """While it decodes: these, and what NeMo's decoders raise for what they do not support."""
    return (*_IN_USE, *setup_failures())
