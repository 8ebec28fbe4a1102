"""Limits of untrusted configurations, and checks of their values: each message has key, value and what is supported."""

from penstock.errors import CheckpointError, shown

MAX_SIZE = 1 << 20
"""Values of an axis of a tensor."""
MAX_LAYERS = 256
MAX_CONTEXT = 10_000
"""Encoder frames of a context, on a side of local attention, or of a duration."""
MAX_FFT = 1 << 14
MAX_MEL_BINS = 1024


def require(condition: bool, key: str, value: object, supported: str) -> None:
    """Raises CheckpointError unless the condition holds."""
    if not condition:
        raise CheckpointError(f"{key}: {shown(value)} is not supported; supported: {supported}")


def require_integers(config: object, *keys: str, least: int = 1, most: int = MAX_SIZE) -> None:
    """Accepts attributes that are integers from `least` to `most`."""
    for key in keys:
        value = getattr(config, key)
        require(type(value) is int and least <= value <= most, key, value, f"an integer from {least} to {most}")


def require_numbers(config: object, *keys: str, least: float = 0.0, most: float = 1.0) -> None:
    """Accepts attributes that are numbers from `least` to `most`."""
    for key in keys:
        value = getattr(config, key)
        fits = type(value) in (int, float) and least <= value <= most
        require(fits, key, value, f"a number from {least:g} to {most:g}")


def require_flags(config: object, *keys: str) -> None:
    """Accepts attributes that are true or false."""
    for key in keys:
        require(type(getattr(config, key)) is bool, key, getattr(config, key), "true or false")
