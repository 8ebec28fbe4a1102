"""Triton model `decoder`: ENCODED frames in, words out. It holds the hypotheses of every stream."""

from penstock.errors import StreamError
from penstock.pipeline.stages.decoder import DecoderStage
from penstock.pipeline.stages.decoder_rows import ResultChanges
from penstock.serving import triton_io
from penstock.serving.metrics import ChunkMetrics


class TritonPythonModel:
    """Adapter of `penstock.pipeline.stages.decoder`."""

    def initialize(self, args):
        """Builds the stage from the environment (`penstock.serving.settings`)."""
        self.log, settings, self._signer = triton_io.open_model("decoder", args)
        self._stage = DecoderStage(
            settings.checkpoint, settings.slots, settings.open_ledger(), settings.device, settings.options.decoding,
            settings.context, settings.precision,
        )  # fmt: skip
        lm = settings.options.decoding.lm or "none"
        self.log.stage(
            f"loaded: {', '.join(self._stage.decoders)} on {settings.device}, driver {self._stage.driver_name}, "
            f"kernels {self._stage.kernels}, language model: {lm}"
        )
        frames, chunk_ms = settings.decoded_chunk
        self._metrics = ChunkMetrics(triton_io.make_metric, frames, chunk_ms, settings.open_latency())
        self._changes = ResultChanges(settings.slots)
        triton_io.warm_up(self._stage.warm_up, self.log, args)

    @triton_io.ends_process_without_device
    def execute(self, requests):
        """Returns one response per request; a rejected request or row does not affect its batch."""
        tickets = [triton_io.ticket(request, self._signer, reads_rest=True) for request in requests]
        encoded = [triton_io.tensor(request, "ENCODED") for request in requests]
        speakers = [triton_io.speaker_frames(request) for request in requests]
        replies = self._stage.process_tickets(tickets, encoded, speakers)
        self._metrics.update(tickets, replies, self._stage.truncation)
        return [self._response(*one) for one in zip(requests, tickets, replies, speakers, strict=True)]

    def _response(self, request, ticket, reply, speakers):
        if isinstance(reply, StreamError):
            return triton_io.error_response(reply, request, self.log)
        if reply.is_batched:
            for row, error in reply.errors.items():
                if row not in ticket.errors:  # `features` has logged its own
                    self.log.rejection(error, None, request.request_id(), row)
            changes = self._changes.of_rows(ticket.rows, reply.answers)
            return triton_io.batched_response(changes, speakers is not None)
        answer = reply.answers[0]
        if isinstance(answer, StreamError):
            return triton_io.error_response(answer, request, self.log)
        return triton_io.results_response(answer.entries)

    def finalize(self):
        """Frees outputs before Triton frees its memory."""
        triton_io.release_outputs()
