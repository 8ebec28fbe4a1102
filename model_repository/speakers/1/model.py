"""Triton model `speakers`: AUDIO in, PROBABILITIES of speakers out. It holds the speaker state of every stream."""

from penstock.errors import SettingError, StreamError
from penstock.pipeline.slots.ticket import TicketSigner
from penstock.pipeline.stages.speakers import SpeakerStage
from penstock.runtime import freeze_loaded, prepare_process
from penstock.serving import triton_io
from penstock.serving.metrics import SpeakerMetrics
from penstock.serving.model_log import ModelLog
from penstock.serving.settings import Settings
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
        self._signer = TicketSigner.shared(settings.runtime_directory)
        if settings.speakers is None:
            raise SettingError("PENSTOCK_SPEAKERS is not set; accepted: a bundle of a speaker model")
        self._stage = SpeakerStage(
            SpeakerCheckpoint(settings.speakers), settings.speaker_streams, settings.open_board(), settings.device,
            settings.decoding.cuda_graphs, settings.precision,
        )  # fmt: skip
        self._metrics = SpeakerMetrics(triton_io.make_metric, self._stage)
        self.log.stage(f"loaded: {settings.device}, {settings.speaker_streams} streams")
        self._stage.warm_up()
        freeze_loaded()
        self.log.stage("warmed up")

    @triton_io.ends_process_without_device
    def execute(self, requests):
        """Returns one response per request. Rows that fail here go on without speakers."""
        tickets = [triton_io.ticket(request, self._signer) for request in requests]
        replies = self._stage.process_tickets(tickets, [triton_io.speaker_audio(request) for request in requests])
        self._metrics.update()
        return [
            triton_io.error_response(reply, request, self.log)
            if isinstance(reply, StreamError)
            else triton_io.speaker_response(reply)
            for request, reply in zip(requests, replies, strict=True)
        ]

    def finalize(self):
        """Frees outputs before Triton frees its memory."""
        triton_io.release_outputs()
