"""Time and peak memory of a Transducer loss over all lattice points and over a band of them (docs/factorized.md).

    python -m benchmarks.band_loss

Each row is a fresh process with one thread: the loss of 20 hypotheses (140 encoder frames, 40 labels, 1,024 pieces)
and its gradient, on random weights. Memory is what the process grows by at most.
"""

import resource
import sys
import time
from multiprocessing import get_context

import torch

from benchmarks.random_models import TRANSDUCERS
from penstock.model.config import FACTORIZED, STANDARD, TransducerConfig
from penstock.reporting import commit, date_utc, describe_hardware, markdown_table
from recipes.training.cells import Cells, all_cells, band_cells
from recipes.training.factorized_head import FactorizedHead
from recipes.training.standard_head import StandardHead

UTTERANCES, HYPOTHESES, FRAMES, LABELS = 4, 5, 140, 40
BAND = 4
SIZES = TRANSDUCERS["large"]
KIB_PER_MIB = 1024


def main() -> int:
    """Command line; returns the exit status."""
    rows = []
    for kind in (STANDARD, FACTORIZED):
        for band in (None, BAND):
            with get_context("spawn").Pool(1) as pool:
                points, mib, seconds = pool.apply(measure, (kind, band))
            name = "RNN-T" if kind == STANDARD else kind
            where = "all points" if band is None else f"band of {band} frames"
            rows.append((name, where, f"{points:,}", f"{mib:,.0f}", f"{seconds:.1f}"))
    print(f"{describe_hardware()}, {date_utc()}, commit {commit()}\n")
    print(markdown_table(("head", "lattice", "points", "peak MiB", "s"), rows, left=2))
    return 0


def measure(kind: str, band: int | None) -> tuple[int, float, float]:
    """Points, peak memory in MiB and seconds of one loss with its gradient."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    head = _head(kind)
    step(head, 1, 8, 2, None)  # what a first call allocates for good
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    points = step(head, UTTERANCES, FRAMES, LABELS, band)
    seconds = time.perf_counter() - began
    return points, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / KIB_PER_MIB, seconds


def step(head: StandardHead | FactorizedHead, utterances: int, frames: int, labels: int, band: int | None) -> int:
    """One loss and gradient; returns the number of lattice points."""
    count = utterances * HYPOTHESES
    encoded = torch.randn(utterances, frames, SIZES.d_model)
    rows = torch.arange(utterances).repeat_interleave(HYPOTHESES)
    cells = _cells(count, frames, labels, band)
    sequences = torch.randint(SIZES.vocabulary_size, (count, labels))
    head.zero_grad(set_to_none=True)
    head.log_probability(encoded, rows, sequences, cells).sum().backward()
    return len(cells.rows)


def _cells(count: int, frames: int, labels: int, band: int | None) -> Cells:
    counts = torch.full((count,), frames), torch.full((count,), labels)
    if band is None:
        return all_cells(*counts)
    times = torch.randint(frames, (count, labels)).sort(dim=1).values
    return band_cells(*counts, times, band, band)


def _head(kind: str) -> StandardHead | FactorizedHead:
    """The internal language model is frozen, as in MWER training."""
    activation = "tanh" if kind == FACTORIZED else "relu"
    config = TransducerConfig(SIZES.vocabulary_size, SIZES.hidden, 1, SIZES.hidden, activation, (), kind=kind)
    if kind == STANDARD:
        return StandardHead(config, SIZES.d_model)
    head = FactorizedHead(config, SIZES.d_model)
    head.ilm.requires_grad_(False)
    return head


if __name__ == "__main__":
    sys.exit(main())
