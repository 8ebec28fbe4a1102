"""Metrics of the gateway in the text format of Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_FINAL_BUCKETS = (0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0)
_LABELS = ("protocol",)


class Metrics:
    """Counters, gauges and histograms."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        name, registry = "penstock_gateway_", self.registry
        self.streams_live = Gauge(f"{name}streams_live", "Streams open on a replica", _LABELS, registry=registry)
        self.streams_started = Counter(
            f"{name}streams_started", "Streams accepted by a replica", _LABELS, registry=registry
        )
        self.rejected = Counter(
            f"{name}rejected",
            "Requests and streams that failed with an error",
            ("protocol", "reason"),
            registry=registry,
        )
        self.streams_moved = Counter(
            f"{name}streams_moved", "Streams that went on at another replica", ("reason",), registry=registry
        )
        self.replayed_seconds = Counter(
            f"{name}replayed_seconds", "Audio sent again to another replica", registry=registry
        )
        self.replay_bytes = Gauge(
            f"{name}replay_bytes",
            "Audio of live streams kept for moves",
            registry=registry,
        )
        self.audio_seconds = Counter(f"{name}audio_seconds", "Audio sent to replicas", _LABELS, registry=registry)
        self.key_requests = Counter(
            f"{name}key_requests", "Streams accepted by a replica, by API key", ("key",), registry=registry
        )
        self.key_audio_seconds = Counter(
            f"{name}key_audio_seconds", "Audio sent to replicas, by API key", ("key",), registry=registry
        )
        self.final_latency = Histogram(
            f"{name}final_latency_seconds", "From a forced end or the end of the audio to the final text", _LABELS,
            registry=registry, buckets=_FINAL_BUCKETS,
        )  # fmt: skip
        self.partial_latency = Histogram(
            f"{name}partial_latency_seconds", "From the last audio of a chunk to its text", _LABELS,
            registry=registry, buckets=_FINAL_BUCKETS,
        )  # fmt: skip
        self.replicas_up = Gauge(f"{name}replicas_up", "Replicas that answer", ("group",), registry=registry)
