"""Estimates the memory of a server on a CUDA device by arithmetic: `penstock serve` compares it with what is free.

It has what is allocated at the start, and the activations of the largest steps. It leaves out temporaries of the graph
search, workspaces of libraries and what the allocator rounds up.
"""

from math import prod
from pathlib import Path
from typing import NamedTuple

from penstock.decoding.greedy.memory import BatchedHyps
from penstock.decoding.sizes import BeamSizes, WfstSizes
from penstock.decoding.tensors.graph_buckets import bucket_sizes
from penstock.decoding.transducer.interface import max_labels
from penstock.decoding.wfst.device_graph import MEMORY_PER_FILE
from penstock.encoder.captured_step import BUCKETS
from penstock.encoder.encoder import MAX_BATCH
from penstock.errors import SettingError
from penstock.graphs.select import NO_GRAPHS
from penstock.kernels.capability import FUSED
from penstock.model.bundle import encoder_shapes
from penstock.model.config import AttentionContext, EncoderConfig, ModelConfig, TransducerConfig
from penstock.pipeline.memory.server_memory import (
    MAX_DECODER_STEP,
    WINDOW_STEP_BYTES,
    SpeakerMemory,
    beam_bytes,
    bytes_per_stream,
    copied_numbers,
    encoder_numbers_per_stream,
    greedy_bytes,
    server_memory,
    step_bytes,
)
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.offers import offer_decoders
from penstock.pipeline.slots.table import slot_count
from penstock.pipeline.stages.decoder import MAX_CAPTURED_BATCH
from penstock_common.options import CTC, GREEDY, TRANSDUCER_BEAMS, WFST

CONTEXT_BYTES = 500 * 10**6
"""A CUDA context with its kernels: of the encoder's process and of the decoder's."""
_LINK_BYTES = 5 * 8 + 8 + 4 + 1
"""A link of `Links` with its liveness."""
_LOWER = {
    "weights": "a smaller model, or --precision float16",
    "streams": "a lower --max-streams, or --precision float16",
    "phrases": "a lower --phrase-memory-mib",
    "encoder_step": "a lower --max-streams or --max-audio-s, or --precision float16",
    "searches": "--cuda-graphs no_graphs, or a lower --max-streams",
    "decoder_step": "a lower --max-streams or --beam-size",
    "speakers": "a lower --speaker-streams",
}


class DeviceMemory(NamedTuple):
    """Bytes of each part."""

    weights: int
    """Language model and graph included."""
    streams: int
    """State of all slots, and of the encoder's spare one."""
    phrases: int
    """All at once."""
    encoder_step: int
    """Inputs, outputs and activations of the largest encoder step; of captured ones the inputs and outputs of each."""
    searches: int
    """Inputs and outputs of captured searches."""
    decoder_step: int
    """Temporaries of the largest decoding step."""
    contexts: int = 2 * CONTEXT_BYTES
    speakers: int = 0
    """Weights, streams and step of the speaker model."""

    def with_speakers(self, memory: SpeakerMemory | None) -> "DeviceMemory":
        """With a speaker model, and the context of its process."""
        if memory is None:
            return self
        return self._replace(contexts=self.contexts + CONTEXT_BYTES, speakers=sum(memory) - memory.waiting)

    def check_fits(self, free_bytes: int, device: str) -> None:
        """SettingError with the parts and what makes the largest one smaller, if they need more than is free."""
        needed = sum(self)
        if needed <= free_bytes:
            return
        parts = ", ".join(f"{name.replace('_', ' ')} {size / 1e9:.2f} GB" for name, size in self._asdict().items())
        largest = max(_LOWER, key=lambda name: getattr(self, name))
        raise SettingError(
            f"the server needs about {needed / 1e9:.2f} GB on {device}, where {free_bytes / 1e9:.2f} GB are free: "
            f"{parts}; accepted: {_LOWER[largest]}"
        )


def device_memory(
    config: ModelConfig,
    context: AttentionContext | None,
    decoding: DecodingConfig,
    max_streams: int,
    number_bytes: int,
    max_audio_s: int = 0,
) -> DeviceMemory:
    """The memory of `penstock serve` with these options; number_bytes: of a number in the encoder's precision.

    context: None for an offline model, whose encoder step is that of all open files.
    """
    slots, frames = slot_count(max_streams), config.encoder.decoding_chunk_frames(context)
    has_graphs = decoding.cuda_graphs != NO_GRAPHS
    rows = min(slots, MAX_CAPTURED_BATCH if has_graphs else MAX_DECODER_STEP)
    on_host = server_memory(config, context, decoding, max_streams, max_audio_s)
    encoder_numbers = sum(map(prod, encoder_shapes(config.encoder).values()))
    graph_bytes = Path(decoding.graph).stat().st_size if decoding.graph and Path(decoding.graph).is_file() else 0
    has_wfst = WFST in offer_decoders(config, decoding).names
    links = 3 * decoding.wfst_max_active * frames * rows * _LINK_BYTES if has_wfst else 0
    spare = 0 if context is None else encoder_numbers_per_stream(config.encoder, context) * number_bytes
    return DeviceMemory(
        weights=on_host.weights + encoder_numbers * (number_bytes - 4) + int(graph_bytes * (MEMORY_PER_FILE - 1)),
        streams=slots * bytes_per_stream(config, context, decoding, number_bytes) + spare,
        phrases=on_host.phrases,
        encoder_step=(
            on_host.audio + WINDOW_STEP_BYTES * (number_bytes - 1)  # once more is in `step_bytes`
            if context is None
            else _encoder_step_bytes(config.encoder, context, slots, has_graphs, number_bytes)
        ),
        searches=_captured_bytes(config, frames, decoding, rows) if has_graphs else 0,
        decoder_step=max(step_bytes(config, context, decoding, rows), links),
    )


def _encoder_step_bytes(
    encoder: EncoderConfig, context: AttentionContext, slots: int, has_graphs: bool, number_bytes: int
) -> int:
    frames = context.chunk_encoder_frames
    row = 4 * encoder.subsampling_factor * frames * encoder.mel_bins + number_bytes * frames * encoder.d_model + 3 * 8
    if not has_graphs:
        rows = min(slots, MAX_BATCH)
        return rows * (row + number_bytes * (activations(encoder, context) + copied_numbers(encoder)))
    largest = next((size for size in BUCKETS if size >= slots), BUCKETS[-1])
    buckets = sum(size for size in BUCKETS if size <= largest)
    return buckets * row + largest * number_bytes * (activations(encoder, context) + copied_numbers(encoder))


def activations(encoder: EncoderConfig, context: AttentionContext) -> int:
    """Numbers of one row that are in memory at once in an encoder step, without its input."""
    frames, width = context.chunk_encoder_frames, encoder.d_model
    # 1) subsampling: the output of the first convolution, and its padded copy
    first_frames, bins = encoder.subsampling_factor * frames // 2, encoder.subsampled_mel_bins[0]
    subsampling = encoder.subsampling_channels * (first_frames * bins + (first_frames + 1) * (bins + 3))
    # 2) a layer: the convolution windows of all layers; input and norm, queries, keys and values twice; the keys and
    # values of all pages; three tensors of scores
    keys = context.left + frames
    windows = encoder.n_layers * (encoder.conv_kernel_size - 1 + frames) * width
    attention = 8 * frames * width + 2 * keys * width + 3 * encoder.n_heads * frames * keys
    return max(subsampling, windows + attention)


def _captured_bytes(config: ModelConfig, frames: int, decoding: DecodingConfig, rows: int) -> int:
    names = offer_decoders(config, decoding).names
    beam, total = BeamSizes(decoding.beam_size), 0
    if GREEDY in names and config.transducer is not None:
        total += _greedy_bytes(config.transducer, decoding, frames, rows)
        if decoding.capture_beams:
            each = beam_bytes(config.transducer, beam)
            each += 4 * (beam.carried_encoder_frames + frames) * config.transducer.row_width
            total += 2 * len(TRANSDUCER_BEAMS) * rows * each
    if CTC in names and decoding.capture_beams:
        each = beam_bytes(None, beam._replace(carried_encoder_frames=0)) + 4 * frames * (config.vocabulary_size + 1)
        total += 2 * rows * each
    if WFST in names:
        total += rows * wfst_bytes(WfstSizes(decoding.wfst_max_active), config.vocabulary_size, frames)
    return total


def _greedy_bytes(transducer: TransducerConfig, decoding: DecodingConfig, frames: int, rows: int) -> int:
    """Buffers of the search without external scores, and of that with them, which keeps the scores of all labels."""
    labels = max_labels(transducer, frames, decoding.max_symbols or transducer.max_symbols)
    plain = greedy_buffer_bytes(transducer, rows, frames, labels)
    scores = 0 if decoding.kernels == FUSED else 4 * sum(bucket_sizes(rows)) * transducer.vocabulary_size
    return 2 * plain + scores


def greedy_buffer_bytes(transducer: TransducerConfig, rows: int, frames: int, labels: int) -> int:
    """Size of `GreedyBuffers`; labels: the most of one row."""
    state = greedy_bytes(transducer) - 8  # without the encoder's counter
    return rows * (4 * frames * transducer.row_width + 8 + state) + 8 * BatchedHyps.storage_size(rows, labels)


def wfst_bytes(sizes: WfstSizes, labels: int, frames: int) -> int:
    """Size of one row's chunk in `CapturedWfstSearch`: log-probabilities, numbers, state, best path."""
    best_path = 5 * 4 * sizes.path_width(frames) + 5 * 8
    return 4 * frames * (labels + 1) + 2 * 8 + 1 + sizes.bytes_per_stream + best_path
