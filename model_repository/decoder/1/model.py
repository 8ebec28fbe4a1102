"""Triton model `decoder`: ENCODED frames in, words out. It holds the hypotheses of every stream."""

from penstock.errors import StreamError
from penstock.pipeline.decoder_stage import DecoderRequest, DecoderStage
from penstock.pipeline.slots.ticket import Ticket, TicketSigner
from penstock.runtime import freeze_loaded, prepare_process
from penstock.serving import triton_io
from penstock.serving.metrics import ChunkMetrics, DecodedFrames
from penstock.serving.model_log import ModelLog
from penstock.serving.settings import Settings


class TritonPythonModel:
    """Adapter of `penstock.pipeline.decoder_stage`."""

    def initialize(self, args):
        """Builds the stage from the environment (`penstock.serving.settings`)."""
        self.log = ModelLog("decoder")
        triton_io.check_single_instance(args)
        settings = Settings.from_environment()
        prepare_process(settings.threads)
        self._signer = TicketSigner.shared(settings.runtime_directory)
        self._stage = DecoderStage(
            settings.checkpoint, settings.slots, settings.open_ledger(), settings.device, settings.decoding,
            settings.context,
        )  # fmt: skip
        lm = settings.decoding.lm or "none"
        self.log.stage(
            f"loaded: {', '.join(self._stage.decoders)} on {settings.device}, driver {self._stage.driver_name}, "
            f"kernels {self._stage.kernels}, language model: {lm}"
        )
        frames, config = settings.context.chunk_encoder_frames, settings.checkpoint.config
        self._metrics = ChunkMetrics(
            triton_io.make_metric, frames, config.chunk_ms(settings.context), settings.open_latency()
        )
        self._stage.warm_up(triton_io.max_batch_size(args))
        freeze_loaded()
        self.log.stage("warmed up")

    @triton_io.ends_process_without_device
    def execute(self, requests):
        """Returns one response per request; a rejected request does not affect its batch."""
        tickets = [triton_io.ticket(request, self._signer, reads_options=True) for request in requests]
        stage_requests = [self._stage_request(*pair) for pair in zip(requests, tickets, strict=True)]
        results = self._stage.process(stage_requests)
        responses = [
            triton_io.error_response(result, request, self.log)
            if isinstance(result, StreamError)
            else triton_io.results_response(result.entries)
            for result, request in zip(results, requests, strict=True)
        ]
        decoded = [
            DecodedFrames(len(request.encoded), ticket.received_ns, ticket.lease.slot, request.is_start)
            for request, ticket, result in zip(stage_requests, tickets, results, strict=True)
            if not isinstance(result, StreamError)
        ]
        self._metrics.update(decoded, self._stage.truncation)
        return responses

    def finalize(self):
        """Frees outputs before Triton frees its memory."""
        triton_io.release_outputs()

    def _stage_request(self, request, ticket: Ticket) -> DecoderRequest:
        encoded = triton_io.tensor(request, "ENCODED")
        is_start, is_end = triton_io.is_start(request), triton_io.is_end(request)
        return DecoderRequest(
            ticket.lease, encoded, ticket.covered_samples, is_start, is_end, ticket.options, ticket.finalize
        )  # fmt: skip
