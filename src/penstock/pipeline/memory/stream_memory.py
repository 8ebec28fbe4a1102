"""Memory of one stream's state on the device, computed without torch, for `penstock serve` to print."""

from penstock.decoding.sizes import BeamSizes, WfstSizes
from penstock.model.config import AttentionContext, EncoderConfig, IlmPair, ModelConfig, TransducerConfig
from penstock.pipeline.options.decoder_offer import offer_decoders
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock_client.options import WFST

_CTC_BYTES = 3 * 8 + 4
"""Size of a slot of `CtcStateStore`."""


def encoder_numbers_per_stream(encoder: EncoderConfig, context: AttentionContext) -> int:
    """Numbers of the encoder's state in its precision."""
    cached_frames = context.left + context.chunk_encoder_frames
    return 2 * encoder.n_layers * cached_frames * encoder.d_model + copied_numbers(encoder)


def copied_numbers(encoder: EncoderConfig) -> int:
    """Numbers of a stream's state that a step keeps where the client ends a segment: see `SmallState`."""
    conv_tails = encoder.n_layers * (encoder.conv_kernel_size - 1) * encoder.d_model
    columns = encoder.mel_bins + encoder.subsampling_channels * sum(encoder.subsampled_mel_bins[:-1])
    return conv_tails + columns


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


def greedy_bytes(transducer: TransducerConfig) -> int:
    """Size of a slot of `GreedyStateStore`, and the encoder's counter."""
    counters = 6  # chunks; search position, frames, labels at the frame; language model and phrase list
    return 4 * (_predictor_numbers(transducer) + 1) + 8 * counters


def beam_bytes(transducer: TransducerConfig | None, beam: BeamSizes) -> int:
    """Size of a slot of `BeamStateStore`; without a transducer that of a CTC beam."""
    if transducer is None:
        return _beam_bytes(0, 0, beam)
    return _beam_bytes(_predictor_numbers(transducer), transducer.row_width, beam)


def _predictor_numbers(transducer: TransducerConfig) -> int:
    predictor = 2 * transducer.predictor_layers * transducer.predictor_hidden + transducer.row_width
    return predictor + (len(IlmPair._fields) if transducer.is_factorized else 0)


def _beam_bytes(predictor: int, frame_width: int, beam: BeamSizes) -> int:
    """Size of a slot of `BeamStateStore`; predictor: numbers in the predictor state of one hypothesis."""
    token_bytes, hypothesis_bytes = 3 * 8 + 2 * 4, 7 * 8 + 8 + 2 * 8 + 4
    each = beam.unstable_labels * token_bytes + hypothesis_bytes + 4 * predictor
    return beam.beam_size * each + 4 * beam.carried_encoder_frames * frame_width + 4 * 8
