"""Triton model `speakers`: AUDIO in, PROBABILITIES of speakers out. It holds the speaker state of every stream."""

from penstock.errors import SettingError
from penstock.pipeline.stages.speakers import SpeakerStage
from penstock.serving import triton_io
from penstock.serving.metrics import SpeakerMetrics
from penstock.speakers.bundle import SpeakerCheckpoint


class TritonPythonModel:
    """Adapter of `penstock.pipeline.stages.speakers`."""

    def initialize(self, args):
        """Builds the stage from the environment (`penstock.serving.settings`)."""
        self.log, settings, self._signer = triton_io.open_model("speakers", args)
        options, device = settings.options, settings.device
        if options.speakers is None:
            raise SettingError("PENSTOCK_SPEAKERS is not set; accepted: a bundle of a speaker model")
        self._stage = SpeakerStage(
            SpeakerCheckpoint(options.speakers), options.all_speaker_streams, settings.open_board(), device,
            options.cuda_graphs, settings.precision,
        )  # fmt: skip
        self._metrics = SpeakerMetrics(triton_io.make_metric, self._stage)
        self.log.stage(f"loaded: {device}, {options.all_speaker_streams} streams")
        triton_io.warm_up(self._stage.warm_up, self.log, args)

    @triton_io.ends_process_without_device
    def execute(self, requests):
        """Returns one response per request. Rows that fail here go on without speakers."""
        tickets = [triton_io.ticket(request, self._signer) for request in requests]
        replies = self._stage.process_tickets(tickets, [triton_io.speaker_audio(request) for request in requests])
        self._metrics.update()
        return triton_io.responses(replies, requests, self.log, triton_io.speaker_response)

    def finalize(self):
        """Frees outputs before Triton frees its memory."""
        triton_io.release_outputs()
