"""Triton model `speakers`: AUDIO in, PROBABILITIES of speakers out. It has a stream table and states of its own."""

from penstock.errors import ErrorCode, SettingError, StreamError
from penstock.pipeline.slots.drain import DrainBoard
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import StreamTable, slot_count
from penstock.pipeline.stages.speakers import SpeakerStage
from penstock.runtime import freeze_loaded, prepare_process
from penstock.serving import triton_io
from penstock.serving.metrics import SpeakerMetrics
from penstock.serving.model_log import ModelLog, StreamLog
from penstock.serving.settings import SPEAKER_BOARD, SPEAKER_LEDGER, Settings
from penstock.speakers.bundle import SpeakerCheckpoint


class TritonPythonModel:
    """Adapter of `penstock.pipeline.stages.speakers`."""

    def initialize(self, args):
        """Builds the stage from the environment (`penstock.serving.settings`)."""
        self.log = ModelLog("speakers")
        triton_io.check_single_instance(args)
        triton_io.check_stub()
        settings = Settings.from_environment(is_verified=True)
        prepare_process(settings.threads)
        if settings.speakers is None:
            raise SettingError("PENSTOCK_SPEAKERS is not set; accepted: a bundle of a speaker model")
        slots, runtime = slot_count(settings.speaker_streams), settings.runtime_directory
        ledger, board = SlotLedger(slots, runtime / SPEAKER_LEDGER), DrainBoard(slots, runtime / SPEAKER_BOARD)
        table = StreamTable(
            settings.speaker_streams, ledger, settings.idle_limit_s, board=board, on_settled=StreamLog(self.log).ended
        )
        self._stage = SpeakerStage(
            SpeakerCheckpoint(settings.speakers), table, ledger, settings.device, settings.decoding.cuda_graphs,
            settings.precision,
        )  # fmt: skip
        self._metrics = SpeakerMetrics(triton_io.make_metric, self._stage)
        self.log.stage(f"loaded: {settings.device}, {settings.speaker_streams} streams")
        self._stage.warm_up()
        freeze_loaded()
        self.log.stage("warmed up")

    @triton_io.ends_process_without_device
    def execute(self, requests):
        """Returns one response per request; a rejected request does not affect its batch."""
        replies = self._stage.process([triton_io.audio_rows(request, 0) for request in requests])
        self._metrics.update()
        return [
            triton_io.error_response(reply, request, self.log)
            if isinstance(reply, StreamError)
            else triton_io.speaker_response(reply)
            for request, reply in zip(requests, replies, strict=True)
        ]

    def finalize(self):
        """Logs the streams that the stop cuts off; frees outputs before Triton frees its memory."""
        self._stage.table.close_all(ErrorCode.SERVER_DRAINING.name)
        triton_io.release_outputs()
