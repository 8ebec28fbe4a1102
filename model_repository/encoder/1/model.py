"""Encoder member: MEL chunks in, ENCODED frames out; the encoder state of every stream lives here."""

import gc

from penstock import triton_io
from penstock.cpu import prepare_process
from penstock.errors import StreamError
from penstock.features import MelChunks
from penstock.settings import Settings
from penstock.stages.encoder import EncoderRequest, EncoderStage


class TritonPythonModel:
    """Adapter of `penstock.stages.encoder`."""

    def initialize(self, args):
        """Builds the stage from the environment (`penstock.settings`)."""
        settings = Settings.from_environment()
        prepare_process(settings.threads)
        self._stage = EncoderStage(
            settings.checkpoint, settings.context, settings.slots, settings.open_ledger(), settings.device
        )
        self._device = settings.device
        triton_io.log_start("encoder", f"context {settings.context} on {settings.device}")
        gc.collect()
        gc.freeze()

    def execute(self, requests):
        """One answer a request; a refused stream never fails its batch."""
        answers = self._stage.process([self._work(request) for request in requests])
        triton_io.wait_for_device(self._device)
        return [
            triton_io.error_response(answer) if isinstance(answer, StreamError) else triton_io.encoded_response(answer)
            for answer in answers
        ]

    def _work(self, request) -> EncoderRequest:
        lease, *rest = triton_io.ticket(request)
        return EncoderRequest(lease, MelChunks(triton_io.tensor(request, "MEL"), *rest), triton_io.is_start(request))
