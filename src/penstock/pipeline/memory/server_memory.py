"""Memory of a server, its streams and a speaker model, by arithmetic and without torch.

`penstock serve` states it before anything is loaded.
"""

from math import prod
from pathlib import Path
from typing import NamedTuple

from penstock.decoding.sizes import GREEDY_WINDOW_ENCODER_FRAMES, BeamSizes, WfstSizes
from penstock.model.bundle import encoder_shapes, tensor_shapes
from penstock.model.config import AttentionContext, EncoderConfig, IlmPair, ModelConfig, TransducerConfig
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.offers import offer_decoders
from penstock.pipeline.options.windows import MAX_CALL_PARTS, decoded_frames
from penstock.pipeline.slots.table import slot_count
from penstock.speakers.bundle import SpeakerConfig, speaker_shapes
from penstock_common.options import WFST

MAX_DECODER_STEP = 256
"""Streams of one decoding step: a batched request has up to 1,024, which are decoded one step after another."""
_FLOAT_BYTES = 4
_SCORE_TENSORS = 6
"""Tensors [rows, V + 1] of a step: logits, log-probabilities, those with forced blanks, external and fused scores."""
WINDOW_STEP_BYTES = 150 * 10**6
"""Temporaries of a block of the window encoder: scores, activations of a tile of the subsampling. A GPU has this for
each byte of a number."""
_STRIP_TENSORS = 6
"""Tensors [T, D] of a window, at most: the strip, queries, keys and values, and two for what they become."""
_PROCESS_BYTES = 300 * 10**6
_PROCESSES_BYTES = 3 * _PROCESS_BYTES + 200 * 10**6
"""Three processes with torch, and tritonserver."""
_CTC_BYTES = 3 * 8 + 4
"""Size of a slot of `CtcStateStore`."""
MAX_STEP_ROWS = 16
"""Streams of one step without graphs: on a CPU a larger one is not faster."""
_SPEAKER_STEP_TENSORS = 8
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


class ServerMemory(NamedTuple):
    """Bytes of each part."""

    weights: int
    """The models as they are computed with, language model and graph included."""
    streams: int
    """State of all streams."""
    phrases: int
    """Upper bound of the phrase lists; taken as lists come on the CPU, and at once on a GPU."""
    step: int
    """Temporaries of the largest batch's decoding step, copies of all its streams' states with it, and of an offline
    model's encoder."""
    audio: int = 0
    """Audio of all open files of an offline model."""
    processes: int = _PROCESSES_BYTES
    speaker_weights: int = 0
    speakers: int = 0
    """Streams and step of the speaker model."""

    @property
    def at_start(self) -> int:
        """Bytes needed before the first stream on the CPU."""
        return self.weights + self.speaker_weights + self.processes

    @property
    def total(self) -> int:
        """Bytes needed with all streams."""
        return sum(self)

    def with_speakers(self, memory: SpeakerMemory | None) -> "ServerMemory":
        """With a speaker model, and its process."""
        if memory is None:
            return self
        processes = self.processes + _PROCESS_BYTES
        return self._replace(
            processes=processes, speaker_weights=memory.weights, speakers=sum(memory) - memory.weights
        )  # fmt: skip


def server_memory(
    config: ModelConfig,
    context: AttentionContext | None,
    decoding: DecodingConfig,
    max_streams: int,
    max_audio_s: int = 0,
    precision: str = "float32",
) -> ServerMemory:
    """The memory of `penstock serve` with these options on a CPU; context: None for an offline model."""
    slots, rows = slot_count(max_streams), min(max_streams, MAX_DECODER_STEP)
    copies = 0 if context is None else rows * copied_numbers(config.encoder) * _FLOAT_BYTES
    return ServerMemory(
        weights=_weight_bytes(config, decoding) - (_saved_by_int8(config.encoder) if precision == "int8" else 0),
        streams=slots * bytes_per_stream(config, context, decoding),
        phrases=decoding.phrase_memory_mib * 2**20,
        step=step_bytes(config, context, decoding, rows) + copies,
        audio=max_audio_s * audio_bytes_per_s(config) if context is None else 0,
    )


def speaker_memory(config: SpeakerConfig, max_streams: int, number_bytes: int = 4) -> SpeakerMemory:
    """number_bytes: of a number in the model's precision."""
    slots, cache = slot_count(max_streams), config.cache.frames
    queue = max(config.live_queue.frames, config.file_queue.frames)
    sizes = [sum(size) for size in (*config.live_steps.values(), config.file_step)]
    window = cache + queue + max(sizes)
    state = number_bytes * (cache + queue) * config.d_model + 4 * cache * config.speakers
    mel = 4 * max(sizes) * config.subsampling_factor * config.features.mel_bins
    row = window * (_SPEAKER_STEP_TENSORS * config.d_model + 2 * config.d_feed_forward)
    return SpeakerMemory(
        weights=number_bytes * sum(map(prod, speaker_shapes(config).values())),
        streams=slots * state,
        waiting=slots * mel,
        step=min(MAX_STEP_ROWS, slots) * (number_bytes * row + state),
    )


def bytes_per_stream(
    config: ModelConfig, context: AttentionContext | None, decoding: DecodingConfig, number_bytes: int = 4
) -> int:
    """Bytes of the encoder's state and of all decoders that the server offers; number_bytes: of the encoder's.

    context: None for an offline model, whose encoder has no state.
    """
    heads = 0
    if config.transducer is not None:
        heads += greedy_bytes(config.transducer) + beam_bytes(config.transducer, BeamSizes(decoding.beam_size))
    if config.ctc is not None:
        heads += _CTC_BYTES + beam_bytes(None, BeamSizes(decoding.beam_size, carried_encoder_frames=0))
    if WFST in offer_decoders(config, decoding).names:
        heads += WfstSizes(decoding.wfst_max_active).bytes_per_stream
    encoder_numbers = 0 if context is None else encoder_numbers_per_stream(config.encoder, context)
    return number_bytes * encoder_numbers + heads


def encoder_numbers_per_stream(encoder: EncoderConfig, context: AttentionContext) -> int:
    """Numbers of the encoder's state in its precision."""
    cached_frames = context.left + context.chunk_encoder_frames
    return 2 * encoder.n_layers * cached_frames * encoder.d_model + copied_numbers(encoder)


def copied_numbers(encoder: EncoderConfig) -> int:
    """Numbers of a stream's state that a step keeps where the client ends a segment: see `SmallState`."""
    conv_tails = encoder.n_layers * (encoder.conv_kernel_size - 1) * encoder.d_model
    columns = encoder.mel_bins + encoder.subsampling_channels * sum(encoder.subsampled_mel_bins[:-1])
    return conv_tails + columns


def greedy_bytes(transducer: TransducerConfig) -> int:
    """Size of a slot of `GreedyStateStore`, and the encoder's counter."""
    counters = 6  # chunks; search position, frames, labels at the frame; language model and phrase list
    return 4 * (_predictor_numbers(transducer) + 1) + 8 * counters


def beam_bytes(transducer: TransducerConfig | None, beam: BeamSizes) -> int:
    """Size of a slot of `BeamStateStore`; without a transducer that of a CTC beam."""
    predictor, frame_width = (0, 0) if transducer is None else (_predictor_numbers(transducer), transducer.row_width)
    token_bytes, hypothesis_bytes = 3 * 8 + 2 * 4, 7 * 8 + 8 + 2 * 8 + 4
    each = beam.unstable_labels * token_bytes + hypothesis_bytes + 4 * predictor
    return beam.beam_size * each + 4 * beam.carried_encoder_frames * frame_width + 4 * 8


def _predictor_numbers(transducer: TransducerConfig) -> int:
    """Numbers in the predictor state of one hypothesis."""
    predictor = 2 * transducer.predictor_layers * transducer.predictor_hidden + transducer.row_width
    return predictor + (len(IlmPair._fields) if transducer.is_factorized else 0)


def audio_bytes_per_s(config: ModelConfig) -> int:
    """Bytes for a second of audio of an offline model, while it is encoded."""
    mel = 1000 / config.features.hop_ms * config.encoder.mel_bins
    strip = 1000 / config.encoder_frame_ms * config.encoder.d_model * _STRIP_TENSORS
    return int(_FLOAT_BYTES * (mel + strip))


def _weight_bytes(config: ModelConfig, decoding: DecodingConfig) -> int:
    numbers = sum(map(prod, tensor_shapes(config).values()))
    transducer = config.transducer
    if transducer is not None:
        numbers += label_gate_numbers(transducer)
        if decoding.kernels == "fused":
            numbers += label_gate_numbers(transducer) + transducer.joint_outputs * transducer.joint_hidden
    files = [Path(path).stat().st_size for path in (decoding.lm, decoding.graph) if path and Path(path).is_file()]
    return _FLOAT_BYTES * numbers + sum(files)


def _saved_by_int8(encoder: EncoderConfig) -> int:
    from penstock.linear import MIN_PACKED_NUMBERS  # here, because it imports torch

    large = (prod(s) for s in encoder_shapes(encoder).values() if len(s) == 2 and prod(s) >= MIN_PACKED_NUMBERS)
    return (_FLOAT_BYTES - 1) * sum(large)


def label_gate_numbers(transducer: TransducerConfig) -> int:
    """Numbers of the table of the first layer's input gates by label, in place of the embedding."""
    labels = transducer.vocabulary_size + 1
    return labels * (4 - 1) * transducer.predictor_hidden


def step_bytes(config: ModelConfig, context: AttentionContext | None, decoding: DecodingConfig, batch: int) -> int:
    """Rows that are scored at once, the most of all searches, times labels."""
    row = (config.vocabulary_size + 1) * _FLOAT_BYTES * _SCORE_TENSORS
    if context is None:
        frames = MAX_CALL_PARTS * decoded_frames(config) if config.ctc is not None else 0
        per_stream = max(decoding.beam_size, GREEDY_WINDOW_ENCODER_FRAMES)
        return max(batch * per_stream, frames) * row + WINDOW_STEP_BYTES
    per_stream = max(decoding.beam_size, min(GREEDY_WINDOW_ENCODER_FRAMES, context.chunk_encoder_frames))
    if config.ctc is not None:
        per_stream = max(per_stream, context.chunk_encoder_frames)
    return batch * per_stream * row
