"""Decoder member: ENCODED frames in, words out; the hypothesis of every stream lives here."""

import gc

from penstock import triton_io
from penstock.cpu import prepare_process
from penstock.errors import StreamError
from penstock.settings import Settings
from penstock.stages.decoder import DecoderRequest, DecoderStage


class TritonPythonModel:
    """Adapter of `penstock.stages.decoder`."""

    def initialize(self, args):
        """Builds the stage from the environment (`penstock.settings`)."""
        settings = Settings.from_environment()
        prepare_process(settings.threads)
        self._stage = DecoderStage(
            settings.checkpoint, settings.slots, settings.open_ledger(), settings.device, settings.decoding,
            settings.context,
        )  # fmt: skip
        lm = settings.decoding.lm or "none"
        triton_io.log_start(
            "decoder",
            f"on {settings.device}, driver {self._stage.driver_name}, kernels {settings.decoding.kernels}, "
            f"language model: {lm}",
        )
        gc.collect()
        gc.freeze()

    def execute(self, requests):
        """One answer a request; a refused stream never fails its batch."""
        answers = self._stage.process([self._work(request) for request in requests])
        return [
            triton_io.error_response(answer) if isinstance(answer, StreamError) else triton_io.result_response(answer)
            for answer in answers
        ]

    def _work(self, request) -> DecoderRequest:
        lease, _, covered = triton_io.ticket(request)
        encoded = triton_io.tensor(request, "ENCODED")
        is_start, is_end = triton_io.is_start(request), triton_io.is_end(request)
        options = triton_io.stream_options(request) if is_start else {}
        return DecoderRequest(lease, encoded, covered, is_start, is_end, options)
