"""The stages of a server, for its kind of model: called by the adapters."""

from collections.abc import Callable

from penstock.errors import SettingError
from penstock.pipeline.offline.encoder import WindowEncoderStage
from penstock.pipeline.offline.features import WindowFeatureStage, WindowLimits
from penstock.pipeline.slots.drain import DrainBoard
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import StreamRecord, StreamTable, slot_count
from penstock.pipeline.stages.admission import AdmittingStage
from penstock.pipeline.stages.encoder import EncoderStage
from penstock.pipeline.stages.features import FeatureStage
from penstock.pipeline.stages.speakers import SpeakerStage
from penstock.serving.settings import SPEAKER_BOARD, SPEAKER_LEDGER, Settings
from penstock.speakers.bundle import SpeakerCheckpoint


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


def speaker_stage(settings: Settings, on_settled: Callable[[StreamRecord], object]) -> SpeakerStage:
    """The stage of the speaker model; on_settled: of its `StreamTable`."""
    if settings.speakers is None:
        raise SettingError("PENSTOCK_SPEAKERS is not set; accepted: a bundle of a speaker model")
    slots, runtime = slot_count(settings.speaker_streams), settings.runtime_directory
    ledger = SlotLedger(slots, runtime / SPEAKER_LEDGER)
    board = DrainBoard(slots, runtime / SPEAKER_BOARD)
    table = StreamTable(settings.speaker_streams, ledger, settings.idle_limit_s, board=board, on_settled=on_settled)
    checkpoint = SpeakerCheckpoint(settings.speakers)
    return SpeakerStage(
        checkpoint, table, ledger, settings.device, settings.decoding.cuda_graphs, settings.precision
    )  # fmt: skip
