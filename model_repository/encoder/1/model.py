"""Encoder member: MEL chunks in, ENCODED frames out; the encoder state of every stream lives here."""

from penstock import triton_io
from penstock.cpu import freeze_loaded, prepare_process
from penstock.errors import StreamError
from penstock.features import MelChunks
from penstock.settings import Settings
from penstock.stages.encoder import EncoderRequest, EncoderStage
from penstock.ticket_seal import TicketSeal


class TritonPythonModel:
    """Adapter of `penstock.stages.encoder`."""

    def initialize(self, args):
        """Builds the stage from the environment (`penstock.settings`)."""
        settings = Settings.from_environment()
        prepare_process(settings.threads)
        self._seal = TicketSeal.shared(settings.runtime_directory)
        self._stage = EncoderStage(
            settings.checkpoint, settings.context, settings.slots, settings.open_ledger(), settings.device
        )
        self._device = settings.device
        triton_io.log_start("encoder", f"context {settings.context} on {settings.device}")
        self._stage.rehearse(triton_io.largest_batch(args))
        freeze_loaded()

    def execute(self, requests):
        """One answer a request; a refused stream never fails its batch."""
        answers = self._stage.process([self._work(request) for request in requests])
        triton_io.wait_for_device(self._device)
        return [
            triton_io.error_response(answer) if isinstance(answer, StreamError) else triton_io.encoded_response(answer)
            for answer in answers
        ]

    def finalize(self):
        """Before Triton takes its memory away."""
        triton_io.release_outputs()

    def _work(self, request) -> EncoderRequest:
        ticket = triton_io.ticket(request, self._seal)
        chunks = MelChunks(triton_io.tensor(request, "MEL"), ticket.last_valid_mel_frames, ticket.covered_samples)
        return EncoderRequest(ticket.lease, chunks, triton_io.is_start(request), ticket.ends_segment)
