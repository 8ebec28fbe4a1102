"""Feature member: owns the stream table; AUDIO in, MEL chunks and the stream's TICKET out."""

import gc
import math

from penstock import triton_io
from penstock.cpu import prepare_process
from penstock.errors import StreamError
from penstock.settings import Settings
from penstock.stages.features import FeatureStage
from penstock.streams import StreamTable


class TritonPythonModel:
    """Adapter of `penstock.stages.features`."""

    def initialize(self, args):
        """Builds the stage from the environment (`penstock.settings`)."""
        settings = Settings.from_environment()
        prepare_process(settings.threads)
        idle_limit_s = min(settings.idle_limit_s or math.inf, triton_io.sequence_idle_limit_s(args))
        table = StreamTable(settings.max_streams, settings.open_ledger(), idle_limit_s)
        self._stage = FeatureStage(settings.checkpoint, settings.context, table, settings.device, settings.decoding)
        self._device = settings.device
        triton_io.log_start("features", f"{settings.max_streams} streams, expired after {idle_limit_s:g} s of silence")
        gc.collect()
        gc.freeze()

    def execute(self, requests):
        """One answer a request; a refused stream never fails its batch."""
        answers = self._stage.process([triton_io.audio_request(request) for request in requests])
        triton_io.wait_for_device(self._device)
        return [
            triton_io.error_response(answer) if isinstance(answer, StreamError) else triton_io.feature_response(answer)
            for answer in answers
        ]
