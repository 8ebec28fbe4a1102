"""Triton model `features`: AUDIO in, MEL chunks and TICKET out. It owns the stream table."""

import time

from penstock.errors import ErrorCode
from penstock.pipeline.offline.features import WindowFeatureStage, WindowLimits
from penstock.pipeline.slots.table import StreamTable
from penstock.pipeline.slots.ticket import Ticket
from penstock.pipeline.stages.features import FeatureStage
from penstock.serving import triton_io
from penstock.serving.metrics import StreamMetrics, show_build
from penstock.serving.model_log import StreamLog


class TritonPythonModel:
    """Adapter of `penstock.pipeline.stages.features` and `penstock.pipeline.offline.features`."""

    def initialize(self, args):
        """Builds the stage from the environment (`penstock.serving.settings`)."""
        self.log, settings, self._signer = triton_io.open_model("features", args, is_verified=False)
        checkpoint, options = settings.checkpoint, settings.options
        rate_hz = checkpoint.config.features.sample_rate_hz
        streams = StreamLog(self.log, settings.open_latency(), rate_hz)
        self._table = table = StreamTable(
            options.max_streams, settings.open_ledger(), options.idle_seconds, board=settings.open_board(),
            on_settled=streams.ended, speaker_streams=options.all_speaker_streams,
        )  # fmt: skip
        self._metrics = StreamMetrics(triton_io.make_metric, table, rate_hz)
        show_build(triton_io.make_metric, settings)
        if settings.context is None:
            limits = WindowLimits(60 * rate_hz * options.max_file_minutes, int(rate_hz * settings.max_audio_s))
            self._stage = WindowFeatureStage(
                checkpoint, table, limits, options.decoding, speakers=settings.speaker_config
            )
        else:
            self._stage = FeatureStage(checkpoint, settings.context, table, options.decoding, settings.speaker_config)
        self.log.stage(f"loaded: {options.max_streams} streams, idle timeout {options.idle_seconds:g} s")
        triton_io.warm_up(self._stage.warm_up, self.log, args)

    def execute(self, requests):
        """Returns one response per request; a rejected request or row does not affect its batch."""
        received_ns = time.monotonic_ns()
        batch = [triton_io.audio_rows(request, self._stage.max_request_samples) for request in requests]
        replies = self._stage.process_rows(batch)
        self._metrics.update(self._stage.samples_taken, self._stage.samples_held)

        def respond(reply, request):
            ticket = Ticket(reply.rows, received_ns, reply.is_batched, reply.options, reply.errors)
            return triton_io.feature_response(reply.mel, ticket, self._signer)

        return triton_io.responses(replies, requests, self.log, respond)

    def finalize(self):
        """Logs the streams that the stop cuts off; frees outputs before Triton frees its memory."""
        self._table.close_all(ErrorCode.SERVER_DRAINING.name)
        triton_io.release_outputs()
