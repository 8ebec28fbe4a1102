"""Triton model `encoder`: MEL in, ENCODED frames and their TICKET out. It holds the encoder state of every stream."""

from functools import partial

from penstock.pipeline.offline.encoder import WindowEncoderStage
from penstock.pipeline.stages.encoder import EncoderStage
from penstock.serving import triton_io
from penstock.serving.metrics import show_products


class TritonPythonModel:
    """Adapter of `penstock.pipeline.stages.encoder` and `penstock.pipeline.offline.encoder`."""

    def initialize(self, args):
        """Builds the stage from the environment (`penstock.serving.settings`)."""
        self.log, settings, self._signer = triton_io.open_model("encoder", args)
        checkpoint, slots, ledger = settings.checkpoint, settings.slots, settings.open_ledger()
        if settings.context is None:
            board = settings.open_board()
            self._stage = WindowEncoderStage(checkpoint, slots, ledger, board, settings.device, settings.precision)
        else:
            self._stage = EncoderStage(
                checkpoint, settings.context, slots, ledger, settings.device, settings.options.decoding.cuda_graphs,
                settings.precision, settings.options.decoding.kernels,
            )  # fmt: skip
        show_products(triton_io.make_metric, self._stage.products)
        self.log.stage(f"loaded: {settings.device}, {settings.context_name}")
        triton_io.warm_up(self._stage.warm_up, self.log, args)

    @triton_io.ends_process_without_device
    def execute(self, requests):
        """Returns one response per request. The decoder rejects the rows that fail here."""
        tickets = [triton_io.ticket(request, self._signer) for request in requests]
        mels = [triton_io.tensor(request, "MEL") for request in requests]
        replies = self._stage.process_tickets(tickets, mels)
        return triton_io.responses(replies, requests, self.log, partial(triton_io.encoded_response, self._signer))

    def finalize(self):
        """Frees outputs before Triton frees its memory."""
        triton_io.release_outputs()
