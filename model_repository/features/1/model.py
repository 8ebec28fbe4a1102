"""Feature member: owns the stream table; AUDIO in, MEL chunks and the stream's TICKET out."""

import time

from penstock import triton_io
from penstock.cpu import freeze_loaded, prepare_process
from penstock.errors import StreamError
from penstock.metrics import StreamMetrics
from penstock.settings import Settings
from penstock.stages.features import FeatureStage
from penstock.streams import StreamTable
from penstock.ticket_seal import TicketSeal


class TritonPythonModel:
    """Adapter of `penstock.stages.features`."""

    def initialize(self, args):
        """Builds the stage from the environment (`penstock.settings`)."""
        settings = Settings.from_environment()
        prepare_process(settings.threads)
        self._seal = TicketSeal.shared(settings.runtime_directory)
        table = StreamTable(settings.max_streams, settings.open_ledger(), settings.idle_limit_s)
        rate_hz = settings.checkpoint.config.features.sample_rate_hz
        self._metrics = StreamMetrics(triton_io.make_metric, table, rate_hz)
        self._stage = FeatureStage(settings.checkpoint, settings.context, table, settings.device, settings.decoding)
        self._device = settings.device
        streams = f"{settings.max_streams} streams, expired after {settings.idle_limit_s:g} s of silence"
        triton_io.log_start("features", streams)
        self._stage.rehearse(triton_io.largest_batch(args))
        freeze_loaded()

    def execute(self, requests):
        """One answer a request; a refused stream never fails its batch."""
        heard_ns = time.monotonic_ns()
        answers = self._stage.process([triton_io.audio_request(request) for request in requests])
        triton_io.wait_for_device(self._device)
        self._metrics.update(self._stage.samples_taken)
        return [
            triton_io.error_response(answer)
            if isinstance(answer, StreamError)
            else triton_io.feature_response(answer, heard_ns, self._seal)
            for answer in answers
        ]

    def finalize(self):
        """Before Triton takes its memory away."""
        triton_io.release_outputs()
