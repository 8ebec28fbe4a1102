"""The metrics of the `features`, `decoder` and `speakers` models. Each model updates its metrics once per batch.

Independent of Triton, which makes the metrics through `MakeMetric`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from penstock.errors import StreamError
from penstock.pipeline.slots.ledger import LatencyTable
from penstock.pipeline.slots.table import StreamTable
from penstock.pipeline.slots.ticket import START, Column, Ticket
from penstock.pipeline.stages.decoder_rows import DecodedRows
from penstock.pipeline.stream_decoders.base import NO_TRUNCATION, TruncationCounters
from penstock.serving.settings import Settings
from penstock.version import __version__

if TYPE_CHECKING:  # only the process of that model needs it
    from penstock.pipeline.stages.speakers import SpeakerStage

Kind = Literal["counter", "gauge"]
LATENCY_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the buckets of the chunks' latency."""
_HISTOGRAM_S = 1.0
"""Between two updates of a histogram, which has a call to another process for each bucket."""
_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class Metric(Protocol):
    """A counter or gauge."""

    def increment(self, value: float) -> object:
        """Adds `value`."""

    def set(self, value: float) -> object:
        """Replaces the value of a gauge."""


class MakeMetric(Protocol):
    """Makes metrics."""

    def __call__(self, name: str, description: str, kind: Kind, labels: Mapping[str, str] = _NO_LABELS) -> Metric:
        """A metric; those of one name differ in their labels."""


class _Gauge:
    """A gauge that is set only when its value changes: each call crosses to another process."""

    def __init__(self, make: MakeMetric, name: str, description: str):
        self._metric = make(name, description, "gauge")
        self._shown: float | None = None

    def show(self, value: float) -> None:
        if value != self._shown:
            self._metric.set(value)
            self._shown = value


class _Counter:
    """A counter of a total that is kept elsewhere."""

    def __init__(self, make: MakeMetric, name: str, description: str, labels: Mapping[str, str] = _NO_LABELS):
        self._metric = make(name, description, "counter", labels)
        self._shown = 0.0

    def show(self, total: float) -> None:
        if total > self._shown:
            self._metric.increment(total - self._shown)
            self._shown = total


class _Histogram:
    """A histogram in Prometheus' form, made of counters: this Triton's Python models have no other kind."""

    def __init__(self, make: MakeMetric, name: str, description: str, bounds: Sequence[float]):
        self._bounds = bounds
        self._counts = np.zeros(len(bounds) + 1, np.int64)
        self._sum = 0.0
        labels = [*(f"{bound:g}" for bound in bounds), "+Inf"]
        self._buckets = [_Counter(make, f"{name}_bucket", description, {"le": label}) for label in labels]
        self._total = _Counter(make, f"{name}_count", description)
        self._sum_metric = _Counter(make, f"{name}_sum", description)

    def add(self, value: float, count: int) -> None:
        """`count` observations of one value."""
        self._counts[np.searchsorted(self._bounds, value)] += count
        self._sum += value * count

    def show(self) -> None:
        """Passes on what was added."""
        totals = self._counts.cumsum().tolist()
        for bucket, total in zip(self._buckets, totals, strict=True):
            bucket.show(total)
        self._total.show(totals[-1])
        self._sum_metric.show(self._sum)


def show_build(make: MakeMetric, settings: Settings) -> None:
    """The metric whose labels say what is served."""
    from penstock.encoder.precision import resolve_precision  # here, because it imports torch

    labels = {
        "version": __version__,
        "model": settings.checkpoint.directory.name,
        "context": "offline" if settings.context is None else f"{settings.context.left},{settings.context.right}",
        "device": settings.device,
        "precision": resolve_precision(settings.precision, settings.device),
    }
    make("penstock_build_info", "Always 1; its labels say what is served", "gauge", labels).set(1)


def show_products(make: MakeMetric, products: Mapping[str, int]) -> None:
    """The metric of `Int8Choice.products`."""
    for precision, count in products.items():
        labels = {"precision": precision}
        make("penstock_encoder_products", "Large products of the encoder, by precision", "gauge", labels).set(count)


class StreamMetrics:
    """Metrics of the `features` model: streams and their audio."""

    def __init__(self, make: MakeMetric, table: StreamTable, sample_rate_hz: int):
        self._table = table
        self._sample_rate_hz = sample_rate_hz
        self._live = _Gauge(make, "penstock_streams_live", "Streams that are open")
        self._free = _Gauge(make, "penstock_slots_free", "Streams that could start now")
        self._started = _Counter(make, "penstock_streams_started_total", "Streams that got a slot, without probes")
        self._ended = _Counter(
            make, "penstock_streams_ended_total", "Streams that ended, were restarted or were lost by an error"
        )
        self._expired = _Counter(make, "penstock_streams_expired_total", "Streams that reached the idle timeout")
        self._rejected = _Counter(make, "penstock_streams_refused_total", "Streams rejected because no slot was free")
        self._audio = _Counter(make, "penstock_audio_seconds_total", "Seconds of audio in accepted requests")
        self._held = _Gauge(make, "penstock_audio_held_seconds", "Audio of all open files, of an offline model")
        self._speakers: list[_Gauge] = []
        if table.speaker_streams:
            self._speakers = [
                _Gauge(make, "penstock_speaker_streams_live", "Open streams with speakers"),
                _Gauge(make, "penstock_speaker_slots_free", "Streams with speakers that could start now"),
            ]
        self.update(0)

    def update(self, samples: int, samples_held: int = 0) -> None:
        """Is called once per batch; samples: total of all accepted requests. Expires idle streams.

        samples_held: of all open streams, of an offline model; else 0.
        """
        self._free.show(self._table.count_free())
        self._live.show(self._table.live_streams)
        self._started.show(self._table.started_streams)
        self._ended.show(self._table.ended_streams)
        self._expired.show(self._table.expired_streams)
        self._rejected.show(self._table.rejected_starts)
        self._audio.show(samples / self._sample_rate_hz)
        self._held.show(samples_held / self._sample_rate_hz)
        for gauge, count in zip(self._speakers, self._table.count_speakers(), strict=False):
            gauge.show(count)


class SpeakerMetrics:
    """Metrics of the `speakers` model."""

    def __init__(self, make: MakeMetric, stage: "SpeakerStage"):
        self._stage = stage
        self._steps = _Counter(make, "penstock_speaker_steps_total", "Steps of the speaker model")
        self._chunks = _Counter(make, "penstock_speaker_chunks_total", "Chunks of streams in these steps")
        self._busy = _Counter(make, "penstock_speaker_busy_seconds_total", "Seconds that the speaker model worked")
        self._lost = _Counter(make, "penstock_speaker_streams_lost_total", "Streams that went on without speakers")

    def update(self) -> None:
        """Is called once per batch."""
        self._steps.show(self._stage.steps.steps)
        self._chunks.show(self._stage.steps.rows)
        self._busy.show(self._stage.busy_s)
        self._lost.show(self._stage.lost_streams)


_TRUNCATION = (
    ("penstock_beam_forced_frames_total", "Encoder frames of forced blanks in beams"),
    ("penstock_beam_dropped_hypotheses_total", "Hypotheses pruned because their labels outgrew their memory"),
    ("penstock_wfst_narrowed_frames_total", "Times that a graph search followed fewer arcs than its beam"),
    ("penstock_wfst_dropped_tokens_total", "Tokens dropped because their paths outgrew their memory"),
)
"""Metrics of the fields of `TruncationCounters`."""


class ChunkMetrics:
    """Metrics of the `decoder` model: chunks and truncated beams."""

    def __init__(
        self,
        make: MakeMetric,
        chunk_encoder_frames: int,
        chunk_ms: float,
        latency: LatencyTable | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ):
        """latency: gets the time of each request that completed a chunk; clock_ns: clock of `received_ns`."""
        self._latency = latency
        self._chunk_encoder_frames = chunk_encoder_frames
        self._chunk_ns = round(chunk_ms * 1e6)
        self._clock_ns = clock_ns
        self._total = self._total_late = 0
        self._chunks = _Counter(make, "penstock_chunks_total", "Chunks decoded")
        self._seconds = _Histogram(
            make,
            "penstock_chunk_latency_seconds",
            "From the arrival of the request that completed a chunk in features until its result left the decoder",
            LATENCY_BOUNDS_S,
        )
        self._seconds_due_ns = 0
        self._late = _Counter(
            make,
            "penstock_chunks_late_total",
            "Chunks whose result left the decoder more than a chunk's duration after their audio was received",
        )
        self._truncation = [_Counter(make, *about) for about in _TRUNCATION]

    def update(
        self,
        tickets: Sequence[Ticket | StreamError],
        replies: Sequence[DecodedRows | StreamError],
        truncation: TruncationCounters = NO_TRUNCATION,
    ) -> None:
        """Is called once per batch of requests, when its results are ready; truncation: totals of all beams."""
        now_ns = self._clock_ns()
        for ticket, reply in zip(tickets, replies, strict=True):
            if isinstance(ticket, StreamError) or isinstance(reply, StreamError):
                continue
            rows = np.delete(ticket.rows, list(reply.errors), axis=0) if reply.errors else ticket.rows
            slots, frames, taken_ns = rows[:, Column.SLOT], rows[:, Column.FRAMES], now_ns - ticket.received_ns
            if self._latency:
                self._latency.reset(slots[rows[:, Column.FLAGS] & START > 0])
                self._latency.add(slots[frames > 0], taken_ns)
            # The last chunk of a segment may be short.
            chunks = int((-(-frames // self._chunk_encoder_frames)).sum())
            self._total += chunks
            self._total_late += chunks if taken_ns > self._chunk_ns else 0
            self._seconds.add(taken_ns / 1e9, chunks)
        if now_ns >= self._seconds_due_ns:
            self._seconds.show()
            self._seconds_due_ns = now_ns + round(1e9 * _HISTOGRAM_S)
        self._chunks.show(self._total)
        self._late.show(self._total_late)
        for counter, total in zip(self._truncation, truncation, strict=True):
            counter.show(total)
