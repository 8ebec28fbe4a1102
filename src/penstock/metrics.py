"""What a server counts of its streams: names, meanings, and when each is brought up to date. Knows no Triton.

Two members have metrics of their own. Each brings them up to date once for every batch, never for a request.
"""

import time
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from penstock.stages.beam_losses import NO_LOSSES, BeamLosses
from penstock.streams import StreamTable

Kind = Literal["counter", "gauge"]


class Metric(Protocol):
    """One number that a server shows."""

    def increment(self, value: float) -> object:
        """Adds to it."""

    def set(self, value: float) -> object:
        """Replaces it; of a gauge."""


MakeMetric = Callable[[str, str, Kind], Metric]
"""Name, meaning and kind to a metric."""


class _Gauge:
    """Is told to the server when it changes: each telling crosses to another process."""

    def __init__(self, make: MakeMetric, name: str, meaning: str):
        self._metric = make(name, meaning, "gauge")
        self._shown: float | None = None

    def show(self, value: float) -> None:
        if value != self._shown:
            self._metric.set(value)
            self._shown = value


class _Counter:
    """Shows a total that somebody else keeps."""

    def __init__(self, make: MakeMetric, name: str, meaning: str):
        self._metric = make(name, meaning, "counter")
        self._shown = 0.0

    def show(self, total: float) -> None:
        if total > self._shown:
            self._metric.increment(total - self._shown)
            self._shown = total


class StreamMetrics:
    """Those of the feature member: streams, and their audio."""

    def __init__(self, make: MakeMetric, table: StreamTable, sample_rate_hz: int):
        self._table = table
        self._sample_rate_hz = sample_rate_hz
        self._live = _Gauge(make, "penstock_streams_live", "Streams that are open")
        self._free = _Gauge(make, "penstock_slots_free", "Streams that could start now")
        self._started = _Counter(make, "penstock_streams_started_total", "Streams that were given a slot")
        self._ended = _Counter(
            make, "penstock_streams_ended_total", "Streams that ended, were started again or were lost by an error"
        )
        self._expired = _Counter(make, "penstock_streams_expired_total", "Streams expired for their silence")
        self._refused = _Counter(make, "penstock_streams_refused_total", "Starts refused for want of a slot")
        self._audio = _Counter(make, "penstock_audio_seconds_total", "Seconds of audio taken in")
        self.update(0)

    def update(self, samples: int) -> None:
        """Once for every batch; samples: all that were ever taken in. Expires and frees what is due."""
        self._free.show(self._table.count_free())
        self._live.show(self._table.live_streams)
        self._started.show(self._table.started_streams)
        self._ended.show(self._table.ended_streams)
        self._expired.show(self._table.expired_streams)
        self._refused.show(self._table.refused_starts)
        self._audio.show(samples / self._sample_rate_hz)


class DecodedFrames(NamedTuple):
    """What one request brought to the decoder."""

    encoder_frames: int
    heard_ns: int
    """When the feature member had their audio."""


class ChunkMetrics:
    """Those of the decoder member."""

    def __init__(
        self,
        make: MakeMetric,
        chunk_encoder_frames: int,
        chunk_ms: float,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ):
        """clock_ns: the clock of `DecodedFrames.heard_ns`."""
        self._chunk_encoder_frames = chunk_encoder_frames
        self._chunk_ns = round(chunk_ms * 1e6)
        self._clock_ns = clock_ns
        self._total = self._total_late = 0
        self._chunks = _Counter(make, "penstock_chunks_total", "Chunks decoded")
        self._late = _Counter(
            make,
            "penstock_chunks_late_total",
            "Chunks whose result left the decoder more than a chunk's duration after their audio had come",
        )
        self._forced = _Counter(
            make, "penstock_beam_forced_frames_total", "Frames that hypotheses of beams too far behind were moved on by"
        )
        self._dropped = _Counter(
            make, "penstock_beam_dropped_hypotheses_total", "Hypotheses dropped because their labels outgrew their room"
        )

    def update(self, batch: list[DecodedFrames], losses: BeamLosses = NO_LOSSES) -> None:
        """Once for every batch, when its results are ready to leave. losses: of all beams ever."""
        now_ns = self._clock_ns()
        for frames, heard_ns in batch:
            chunks = -(-frames // self._chunk_encoder_frames)  # a segment's last one may be short
            self._total += chunks
            self._total_late += chunks if now_ns - heard_ns > self._chunk_ns else 0
        self._chunks.show(self._total)
        self._late.show(self._total_late)
        self._forced.show(losses.forced_frames)
        self._dropped.show(losses.dropped_hypotheses)
