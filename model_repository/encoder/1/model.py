"""Triton model `encoder`: MEL chunks in, ENCODED frames out. It holds the encoder state of every stream."""

from penstock.errors import StreamError
from penstock.frontend.log_mel import MelChunks
from penstock.pipeline.encoder_stage import EncoderRequest, EncoderStage
from penstock.pipeline.slots.ticket import TicketSigner
from penstock.runtime import freeze_loaded, prepare_process
from penstock.serving import triton_io
from penstock.serving.model_log import ModelLog
from penstock.serving.settings import Settings


class TritonPythonModel:
    """Adapter of `penstock.pipeline.encoder_stage`."""

    def initialize(self, args):
        """Builds the stage from the environment (`penstock.serving.settings`)."""
        self.log = ModelLog("encoder")
        triton_io.check_single_instance(args)
        settings = Settings.from_environment()
        prepare_process(settings.threads)
        self._signer = TicketSigner.shared(settings.runtime_directory)
        self._stage = EncoderStage(
            settings.checkpoint, settings.context, settings.slots, settings.open_ledger(), settings.device
        )
        self._device = settings.device
        self.log.stage(f"loaded: {settings.device}, context {settings.context}")
        self._stage.warm_up(triton_io.max_batch_size(args))
        freeze_loaded()
        self.log.stage("warmed up")

    @triton_io.ends_process_without_device
    def execute(self, requests):
        """Returns one response per request; a rejected request does not affect its batch."""
        results = self._stage.process([self._stage_request(request) for request in requests])
        triton_io.wait_for_device(self._device)
        return [
            triton_io.error_response(result, request, self.log)
            if isinstance(result, StreamError)
            else triton_io.encoded_response(result)
            for result, request in zip(results, requests, strict=True)
        ]

    def finalize(self):
        """Frees outputs before Triton frees its memory."""
        triton_io.release_outputs()

    def _stage_request(self, request) -> EncoderRequest:
        ticket = triton_io.ticket(request, self._signer)
        chunks = MelChunks(triton_io.tensor(request, "MEL"), ticket.last_valid_mel_frames, ticket.covered_samples)
        return EncoderRequest(ticket.lease, chunks, triton_io.is_start(request), ticket.finalize)
