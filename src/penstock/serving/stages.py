"""The features and encoder stages of a server, for its kind of model: called by the adapters."""

from penstock.pipeline.offline.encoder import WindowEncoderStage
from penstock.pipeline.offline.features import WindowFeatureStage, WindowLimits
from penstock.pipeline.slots.table import StreamTable
from penstock.pipeline.stages.admission import AdmittingStage
from penstock.pipeline.stages.encoder import EncoderStage
from penstock.pipeline.stages.features import FeatureStage
from penstock.serving.settings import Settings


def features_stage(settings: Settings, table: StreamTable) -> AdmittingStage:
    """The first stage."""
    checkpoint = settings.checkpoint
    if settings.context is not None:
        return FeatureStage(checkpoint, settings.context, table, settings.decoding)
    rate_hz = checkpoint.config.features.sample_rate_hz
    limits = WindowLimits(60 * rate_hz * settings.max_file_minutes, int(rate_hz * settings.max_audio_s))
    return WindowFeatureStage(checkpoint, table, limits, settings.decoding)


def encoder_stage(settings: Settings) -> EncoderStage | WindowEncoderStage:
    """The second stage."""
    checkpoint, slots, ledger = settings.checkpoint, settings.slots, settings.open_ledger()
    if settings.context is None:
        board = settings.open_board()
        return WindowEncoderStage(checkpoint, slots, ledger, board, settings.device, settings.precision)
    decoding = settings.decoding
    return EncoderStage(
        checkpoint, settings.context, slots, ledger, settings.device, decoding.cuda_graphs, settings.precision,
        decoding.kernels,
    )  # fmt: skip
