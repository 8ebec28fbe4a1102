"""Triton model `decoder`: ENCODED frames in, words out. It holds the hypotheses of every stream."""

from penstock.errors import StreamError
from penstock.pipeline.decoder_rows import decode_rows
from penstock.pipeline.decoder_stage import DecoderStage
from penstock.pipeline.slots.ticket import TicketSigner
from penstock.runtime import freeze_loaded, prepare_process
from penstock.serving import triton_io
from penstock.serving.metrics import ChunkMetrics, DecodedFrames
from penstock.serving.model_log import ModelLog
from penstock.serving.news import NewsFilter
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
        self._news = NewsFilter(settings.slots)
        self._stage.warm_up(triton_io.max_batch_size(args))
        freeze_loaded()
        self.log.stage("warmed up")

    @triton_io.ends_process_without_device
    def execute(self, requests):
        """Returns one response per request; a rejected request or row does not affect its batch."""
        tickets = [triton_io.ticket(request, self._signer, reads_rest=True) for request in requests]
        encoded = [triton_io.tensor(request, "ENCODED") for request in requests]
        batch = decode_rows(self._stage, tickets, encoded)
        self._metrics.update(self._decoded_frames(tickets, batch), self._stage.truncation)
        return [self._response(*one) for one in zip(requests, tickets, batch, strict=True)]

    def _decoded_frames(self, tickets, batch):
        return [
            DecodedFrames(len(row.encoded), ticket.received_ns, row.lease.slot, row.is_start)
            for ticket, found in zip(tickets, batch, strict=True)
            if not isinstance(found, StreamError)
            for row, answer in found.values()
            if not isinstance(answer, StreamError)
        ]

    def _response(self, request, ticket, rows):
        if isinstance(rows, StreamError):
            return triton_io.error_response(rows, request, self.log)
        if ticket.is_batched:
            return self._batched_response(request, ticket, rows)
        (answer,) = (found.answer for found in rows.values())
        if isinstance(answer, StreamError):
            return triton_io.error_response(answer, request, self.log)
        return triton_io.results_response(answer.entries)

    def _batched_response(self, request, ticket, rows):
        answers = dict(ticket.errors)
        for row, (decoded, answer) in rows.items():
            if isinstance(answer, StreamError):
                self.log.rejection(answer, f"row {row}", request.request_id())
                answers[row] = answer
            else:
                answers[row] = self._news.news(decoded.lease.slot, decoded.is_start, answer.entries)
        return triton_io.batched_response(answers)

    def finalize(self):
        """Frees outputs before Triton frees its memory."""
        triton_io.release_outputs()
