"""Triton model `encoder`: MEL in, ENCODED frames and their TICKET out. It holds the encoder state of every stream."""

from penstock.errors import StreamError
from penstock.pipeline.offline.encoder import WindowEncoderStage
from penstock.pipeline.stages.encoder import EncoderStage
from penstock.runtime import freeze_loaded
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
        self._stage.warm_up(triton_io.max_batch_size(args))
        freeze_loaded()
        self.log.stage("warmed up")

    @triton_io.ends_process_without_device
    def execute(self, requests):
        """Returns one response per request. The decoder rejects the rows that fail here."""
        tickets = [triton_io.ticket(request, self._signer) for request in requests]
        mels = [triton_io.tensor(request, "MEL") for request in requests]
        replies = self._stage.process_tickets(tickets, mels)
        responses = []
        for request, reply in zip(requests, replies, strict=True):
            if isinstance(reply, StreamError):
                responses.append(triton_io.error_response(reply, request, self.log))
                continue
            for row, error in reply.errors.items():
                self.log.rejection(error, None, request.request_id(), row)
            responses.append(triton_io.encoded_response(reply, request, self._signer))
        return responses

    def finalize(self):
        """Frees outputs before Triton frees its memory."""
        triton_io.release_outputs()
