"""Tells tickets of the feature member from others: whoever reaches the server reaches its later members as well.

A ticket names a slot; a forged one would reach into somebody else's stream. Each is sealed with a key that the members
of one server share through their runtime directory. Knows nothing of what a ticket says.
"""

import contextlib
import os
import secrets
from hashlib import blake2b
from pathlib import Path

import numpy as np

_KEY_BYTES = 32


class TicketSeal:
    """Seals rows of int64 numbers."""

    def __init__(self, key: bytes):
        self._keyed = blake2b(key=key, digest_size=8)  # to be copied: the key is taken in once

    @classmethod
    def shared(cls, directory: Path) -> "TicketSeal":
        """With the key in `directory`, which whoever comes first makes up."""
        path, own = directory / "key", directory / f"key-{secrets.token_hex(8)}"
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(own, path)  # whole or not at all, and never over another's
        own.unlink()
        return cls(path.read_bytes())

    def of(self, row: np.ndarray) -> int:
        """The number that belongs to these [n] int64."""
        keyed = self._keyed.copy()
        keyed.update(row.tobytes())  # members share a machine, and with it the order of bytes
        return int.from_bytes(keyed.digest(), "little", signed=True)
