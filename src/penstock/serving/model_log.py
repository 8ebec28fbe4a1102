"""Log lines of one model of the server: its start, rejected requests, and one line per stream at its end."""

import logging
import os
import sys
import time
from collections import deque
from pathlib import Path

from penstock.errors import DeviceLostError, ErrorCode, StreamError, StreamErrorKind
from penstock.pipeline.slots.ledger import LatencyTable
from penstock.pipeline.slots.table import END, IDLE, RESTART, StreamRecord
from penstock.serving.settings import SAMPLE_RATE_HZ, ServeOptions
from penstock_common.log_lines import LineFormatter, RateLimit

_REJECTIONS_PER_S = 20
_REMEMBERED_STREAMS = 256
_BY_CLIENTS = (END, IDLE, RESTART, ErrorCode.SERVER_DRAINING.name)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ModelLog:
    """The log of one model's process, configured by the environment."""

    def __init__(self, model: str):
        self._model = model
        log_format, log_level = (ServeOptions.option(name).read() for name in ("log_format", "log_level"))
        self._log = model_logger(model, log_format, log_level)
        self._limit = RateLimit(_REJECTIONS_PER_S)
        self._rejected: deque[object] = deque(maxlen=_REMEMBERED_STREAMS)
        """The newest streams that had a rejection."""
        self.stage("libraries loaded")

    def stage(self, what: str) -> None:
        """Logs a step of the model's start with the time since its process began."""
        self._log.info(what, extra={"fields": {"elapsed_s": _process_age_s()}})

    def device_lost(self, error: DeviceLostError) -> None:
        """Logs why the model's process ends."""
        self._log.error("the process ends: %s", error.message, extra={"fields": {"code": error.code.name}})

    def rejection(self, error: StreamError, stream_id: object, request_id: str, row: int | None = None) -> None:
        """Logs a request that gets an error, or one row of it; stream_id: None where it is not known.

        Requests that were on their way when their stream was rejected are only debug: one cause is one warning.
        """
        is_follower = error.code is ErrorCode.STREAM_NOT_OPEN and stream_id in self._rejected
        if not is_follower:
            self._rejected.append(stream_id)
        elif not self._log.isEnabledFor(logging.DEBUG):
            return
        if not self._limit.passes():
            return
        fields = {"code": error.code.name, "stream": stream_id, "row": row, "request": request_id or None}
        if left_out := self._limit.take_left_out():
            fields["not_logged"] = left_out
        log = self._log.error if error.kind is StreamErrorKind.INTERNAL else self._log.warning
        log = self._log.debug if is_follower else log
        log("request rejected: %s", error.message, extra={"fields": fields})


class StreamLog:
    """Logs each stream at its end, in the model that has its stream table."""

    def __init__(self, log: ModelLog, latency: LatencyTable | None = None, sample_rate_hz: int = SAMPLE_RATE_HZ):
        self._log = log._log
        self._latency = latency
        self._sample_rate_hz = sample_rate_hz

    def ended(self, record: StreamRecord) -> None:
        """Logs a stream whose requests have settled. A stream without audio, as a probe sends it, is only debug."""
        latencies = self._latency.summary(record.lease.slot) if self._latency else None
        median_ms, longest_ms = latencies or (None, None)
        fields = {
            "stream": record.stream_id,
            "ended_by": record.ended_by,
            "audio_s": record.samples / self._sample_rate_hz,
            "segments": record.segments,
            "decoder": record.decoder,
            "latency_p50_ms": None if median_ms is None else round(median_ms, 1),
            "latency_max_ms": longest_ms,
        }
        log = self._log.info if record.samples else self._log.debug
        log = log if record.ended_by in _BY_CLIENTS else self._log.warning
        log("stream ended", extra={"fields": fields})


def model_logger(model: str, log_format: str, level: str) -> logging.Logger:
    """Sends what this process logs to standard error in the server's format; returns the model's logger."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(model, log_format))
    root = logging.getLogger()
    root.addHandler(handler)
    own = logging.getLogger("penstock")
    own.setLevel(level.upper())
    logging.captureWarnings(True)
    return own


def _process_age_s() -> float:
    start_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / _TICKS_PER_S
