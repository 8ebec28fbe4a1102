"""Decoder member: ENCODED frames in, words out; the hypothesis of every stream lives here."""

from penstock import triton_io
from penstock.cpu import freeze_loaded, prepare_process
from penstock.errors import StreamError
from penstock.metrics import ChunkMetrics, DecodedFrames
from penstock.settings import Settings
from penstock.stages.decoder import DecoderRequest, DecoderStage
from penstock.ticket_seal import TicketSeal


class TritonPythonModel:
    """Adapter of `penstock.stages.decoder`."""

    def initialize(self, args):
        """Builds the stage from the environment (`penstock.settings`)."""
        settings = Settings.from_environment()
        prepare_process(settings.threads)
        self._seal = TicketSeal.shared(settings.runtime_directory)
        self._stage = DecoderStage(
            settings.checkpoint, settings.slots, settings.open_ledger(), settings.device, settings.decoding,
            settings.context,
        )  # fmt: skip
        lm = settings.decoding.lm or "none"
        triton_io.log_start(
            "decoder",
            f"on {settings.device}, driver {self._stage.driver_name}, kernels {self._stage.kernels}, "
            f"language model: {lm}",
        )
        frames, config = settings.context.chunk_encoder_frames, settings.checkpoint.config
        self._metrics = ChunkMetrics(triton_io.make_metric, frames, config.chunk_ms(settings.context))
        self._stage.rehearse(triton_io.largest_batch(args))
        freeze_loaded()

    def execute(self, requests):
        """One answer a request; a refused stream never fails its batch."""
        tickets = [triton_io.ticket(request, self._seal) for request in requests]
        work = [self._work(*pair) for pair in zip(requests, tickets, strict=True)]
        answers = self._stage.process(work)
        responses = [
            triton_io.error_response(answer) if isinstance(answer, StreamError) else triton_io.result_response(answer)
            for answer in answers
        ]
        decoded = [
            DecodedFrames(len(asked.encoded), ticket.heard_ns)
            for asked, ticket, answer in zip(work, tickets, answers, strict=True)
            if not isinstance(answer, StreamError)
        ]
        self._metrics.update(decoded, self._stage.beam_losses)
        return responses

    def finalize(self):
        """Before Triton takes its memory away."""
        triton_io.release_outputs()

    def _work(self, request, ticket: triton_io.Ticket) -> DecoderRequest:
        encoded = triton_io.tensor(request, "ENCODED")
        is_start, is_end = triton_io.is_start(request), triton_io.is_end(request)
        options = triton_io.stream_options(request) if is_start else {}
        return DecoderRequest(
            ticket.lease, encoded, ticket.covered_samples, is_start, is_end, options, ticket.ends_segment
        )  # fmt: skip
