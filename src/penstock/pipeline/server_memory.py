"""Memory of a server, by arithmetic and without torch: `penstock serve` states it before anything is loaded."""

from math import prod
from pathlib import Path
from typing import NamedTuple

from penstock.model.bundle import tensor_shapes
from penstock.model.config import AttentionContext, ModelConfig, TransducerConfig
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.slots.table import slot_count
from penstock.pipeline.stream_memory import bytes_per_stream

MAX_DECODER_STEP = 256
"""Streams of one decoding step: a batched request has up to 1,024, which are decoded one step after another."""
_FLOAT_BYTES = 4
_GREEDY_WINDOW_ENCODER_FRAMES = 8
_SCORE_TENSORS = 6
"""Tensors [rows, V + 1] of a step: logits, log-probabilities, those with forced blanks, external and fused scores."""
_PROCESSES_BYTES = 3 * 300 * 10**6 + 200 * 10**6
"""Three processes with torch, and tritonserver."""


class ServerMemory(NamedTuple):
    """Bytes of each part."""

    weights: int
    """Of the models as they are computed with, language model and graph included."""
    streams: int
    """State of all streams."""
    phrases: int
    """Upper bound of the phrase lists; taken as lists come on the CPU, and at once on a GPU."""
    step: int
    """Temporaries of the largest batch's decoding step."""
    processes: int = _PROCESSES_BYTES

    @property
    def at_start(self) -> int:
        """Bytes needed before the first stream on the CPU."""
        return self.weights + self.processes

    @property
    def total(self) -> int:
        """Bytes needed with all streams."""
        return sum(self)


def server_memory(
    config: ModelConfig, context: AttentionContext, decoding: DecodingConfig, max_streams: int
) -> ServerMemory:
    """The memory of `penstock serve` with these options."""
    slots = slot_count(max_streams)
    return ServerMemory(
        weights=_weight_bytes(config, decoding),
        streams=slots * bytes_per_stream(config, context, decoding),
        phrases=decoding.phrase_memory_mib * 2**20,
        step=step_bytes(config, context, decoding, min(max_streams, MAX_DECODER_STEP)),
    )


def _weight_bytes(config: ModelConfig, decoding: DecodingConfig) -> int:
    numbers = sum(map(prod, tensor_shapes(config).values()))
    transducer = config.transducer
    if transducer is not None:
        numbers += label_gate_numbers(transducer)
        if decoding.kernels == "fused":
            numbers += label_gate_numbers(transducer) + transducer.joint_outputs * transducer.joint_hidden
    files = [Path(path).stat().st_size for path in (decoding.lm, decoding.graph) if path and Path(path).is_file()]
    return _FLOAT_BYTES * numbers + sum(files)


def label_gate_numbers(transducer: TransducerConfig) -> int:
    """Numbers of the table of the first layer's input gates by label, in place of the embedding."""
    labels = transducer.vocabulary_size + 1
    return labels * (4 - 1) * transducer.predictor_hidden


def step_bytes(config: ModelConfig, context: AttentionContext, decoding: DecodingConfig, batch: int) -> int:
    """Rows that are scored at once, the most of all searches, times labels."""
    per_stream = max(decoding.beam_size, min(_GREEDY_WINDOW_ENCODER_FRAMES, context.chunk_encoder_frames))
    if config.ctc is not None:
        per_stream = max(per_stream, context.chunk_encoder_frames)
    return batch * per_stream * (config.vocabulary_size + 1) * _FLOAT_BYTES * _SCORE_TENSORS
