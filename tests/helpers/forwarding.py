"""Requests that a stream table hands on."""

import numpy as np

from penstock.pipeline.slots.table import Lease, StreamTable


def forward(table: StreamTable, lease: Lease, samples: int = 0, is_final: bool = False) -> None:
    """One request of one stream."""
    table.forward(np.array([lease.slot]), np.array([samples]), np.array([is_final]))
