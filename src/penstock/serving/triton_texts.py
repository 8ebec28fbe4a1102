"""Serializes texts for Triton so that its Python stub reads their size correctly, with numpy 1 and 2.

The stub of Triton 2.51 knows the memory layout of numpy 1: where that has the size of an item, numpy 2 has flags.
"""

import ctypes

import numpy as np

_ITEM_SIZE_OFFSET = 32
"""Place of the item size in a dtype of numpy 1, a 32-bit number; numpy 2 has the lower half of the flags there."""


def serialize_texts(array: np.ndarray) -> np.ndarray | tuple[()]:
    """The length and the bytes of each text, flat. It replaces `serialize_byte_tensor` of Triton's module."""
    if not array.size:
        return ()
    parts = (part for text in array.flat for part in (len(text).to_bytes(4, "little"), text))
    flat = np.frombuffer(b"".join(parts), dtype="V1")  # each "V1" makes a dtype, so the next line changes no other
    # Item size 1, and flags of 1: items are references. numpy releases those only of arrays that own their memory.
    flat.dtype.__setstate__((3, "|", None, None, None, 1, 1, 1))  # type: ignore[attr-defined]
    return flat


def stub_size(array: np.ndarray) -> int:
    """The bytes of an array as a stub built for numpy 1 counts them; one built for numpy 2 takes `nbytes`."""
    return array.size * ctypes.c_int32.from_address(id(array.dtype) + _ITEM_SIZE_OFFSET).value
