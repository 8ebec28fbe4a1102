"""Memory of a served speaker model, by arithmetic and without torch."""

from math import prod
from typing import NamedTuple

from penstock.pipeline.slots.table import slot_count
from penstock.speakers.bundle import SpeakerConfig, speaker_shapes

MAX_STEP_ROWS = 16
"""Streams of one step without graphs: on a CPU a larger one is not faster."""
_STEP_TENSORS = 8
"""Tensors [T, D] of a row that are in memory at once: the window, x, queries, keys and values, and those rotated."""


class SpeakerMemory(NamedTuple):
    """Bytes of each part."""

    weights: int
    streams: int
    """Caches and queues of all slots."""
    waiting: int
    """Log-mel on the host, if all slots have streams of the mode `file`."""
    step: int
    """Temporaries of the largest step."""


def speaker_memory(
    config: SpeakerConfig, max_streams: int, number_bytes: int = 4, rows: int = MAX_STEP_ROWS
) -> SpeakerMemory:
    """number_bytes: of a number in the model's precision; rows: of the largest step."""
    slots, cache = slot_count(max_streams), config.cache.frames
    queue = max(config.live_queue.frames, config.file_queue.frames)
    sizes = [sum(size) for size in (*config.live_steps.values(), config.file_step)]
    window = cache + queue + max(sizes)
    state = number_bytes * (cache + queue) * config.d_model + 4 * cache * config.speakers
    mel = 4 * max(sizes) * config.subsampling_factor * config.features.mel_bins
    row = window * (_STEP_TENSORS * config.d_model + 2 * config.d_feed_forward)
    return SpeakerMemory(
        weights=number_bytes * sum(map(prod, speaker_shapes(config).values())),
        streams=slots * state,
        waiting=slots * mel,
        step=number_bytes * min(rows, slots) * row,
    )
