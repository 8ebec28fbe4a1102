"""What requests leave in memory until garbage is collected."""

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def freed_at_once(max_bytes: int) -> Iterator[None]:
    """The block must leave less than this; garbage, which is collected only after many requests, counts."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()
    assert left < max_bytes
