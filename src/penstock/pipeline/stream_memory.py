"""Memory of one stream's state on the device, computed without torch, for `penstock serve` to print."""

from penstock.decoding.beam.sizes import BeamSizes
from penstock.decoding.wfst.sizes import WfstSizes
from penstock.model.config import AttentionContext, IlmPair, ModelConfig, TransducerConfig
from penstock.pipeline.options.decoder_offer import offer_decoders
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock_client.options import WFST

_CTC_BYTES = 3 * 8 + 4
"""Size of a slot of `CtcStateStore`."""


def bytes_per_stream(config: ModelConfig, context: AttentionContext, decoding: DecodingConfig) -> int:
    """Bytes of the encoder's state and of all decoders that the server offers."""
    encoder = config.encoder
    cached_frames = context.left + context.chunk_encoder_frames
    keys_and_values = 2 * encoder.n_layers * cached_frames * encoder.d_model
    conv_tails = encoder.n_layers * (encoder.conv_kernel_size - 1) * encoder.d_model
    columns = encoder.mel_bins + encoder.subsampling_channels * sum(encoder.subsampled_mel_bins[:-1])
    heads = 0
    if config.transducer is not None:
        heads += _transducer_bytes(config.transducer, BeamSizes(decoding.beam_size))
    if config.ctc is not None:
        heads += _CTC_BYTES + _beam_bytes(0, 0, BeamSizes(decoding.beam_size, carried_encoder_frames=0))
    if WFST in offer_decoders(config, decoding).names:
        heads += WfstSizes(decoding.wfst_max_active).bytes_per_stream
    return 4 * (keys_and_values + conv_tails + columns) + heads


def _transducer_bytes(transducer: TransducerConfig, beam: BeamSizes) -> int:
    """Size of a slot of `GreedyStateStore` and of `BeamStateStore`."""
    predictor = 2 * transducer.predictor_layers * transducer.predictor_hidden + transducer.row_width
    predictor += len(IlmPair._fields) if transducer.is_factorized else 0
    counters = 6  # chunks; search position, frames, labels at the frame; language model and phrase list
    greedy = 4 * (predictor + 1) + 8 * counters
    return greedy + _beam_bytes(predictor, transducer.row_width, beam)


def _beam_bytes(predictor: int, frame_width: int, beam: BeamSizes) -> int:
    """Size of a slot of `BeamStateStore`; predictor: numbers in the predictor state of one hypothesis."""
    token_bytes, hypothesis_bytes = 3 * 8 + 2 * 4, 7 * 8 + 8 + 2 * 8 + 4
    each = beam.unstable_labels * token_bytes + hypothesis_bytes + 4 * predictor
    return beam.beam_size * each + 4 * beam.carried_encoder_frames * frame_width + 4 * 8
