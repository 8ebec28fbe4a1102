"""Prometheus metrics, and what is reported of one stream: its metrics and its line of the access log."""

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from penstock_client import StreamResult
from penstock_common.audio.monitors import SpeechMonitor
from penstock_common.audio.pcm import Remark
from penstock_common.audio.tracks import Samples
from penstock_gateway.security.files import Followed
from penstock_gateway.stream.events import Final
from penstock_gateway.stream.options import ModelGroup
from penstock_gateway.tracing import StreamSpan
from penstock_gateway.version import __version__

_FINAL_BUCKETS = (0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0)
_LABELS = ("protocol",)
log = logging.getLogger("penstock_gateway.access")
NO_FAILURES = ("finished", "cancelled")
"""Ends of streams without an error."""


class Metrics:
    """Counters, gauges and histograms."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        common: dict[str, Any] = {"namespace": "penstock_gateway", "registry": self.registry}
        gauge: Callable[..., Gauge] = partial(Gauge, **common)
        counter: Callable[..., Counter] = partial(Counter, **common)
        histogram: Callable[..., Histogram] = partial(Histogram, labelnames=_LABELS, buckets=_FINAL_BUCKETS, **common)
        self.streams_live = gauge("streams_live", "Streams open on a replica", _LABELS)
        self.streams_started = counter("streams_started", "Streams accepted by a replica", _LABELS)
        self.rejected = counter("rejected", "Requests and streams that failed with an error", ("protocol", "reason"))
        self.streams_moved = counter("streams_moved", "Streams that went on at another replica", ("reason",))
        self.replayed_seconds = counter("replayed_seconds", "Audio sent again to another replica")
        self.replay_bytes = gauge("replay_bytes", "Audio of live streams kept for moves")
        self.audio_seconds = counter("audio_seconds", "Audio sent to replicas", _LABELS)
        self.remarks = counter("remarks", "Remarks on the audio of streams", ("code",))
        self.key_requests = counter("key_requests", "Streams accepted by a replica, by API key", ("key",))
        self.key_audio_seconds = counter("key_audio_seconds", "Audio sent to replicas, by API key", ("key",))
        self.final_latency = histogram(
            "final_latency_seconds", "From a forced end or the end of the audio to the final text"
        )
        self.partial_latency = histogram("partial_latency_seconds", "From the last audio of a chunk to its text")
        self.reload_successful = gauge("file_reload_successful", "1: in use as it is; 0: rejected", ("file",))
        self.rejections_of_files = counter("file_rejections", "New contents of a file that were rejected", ("file",))
        self.certificate_not_after = gauge("certificate_not_after_timestamp_seconds", "When it expires", ("path",))
        gauge("build_info", "1, by version", ("version",)).labels(__version__).set(1)
        self.replicas_up = gauge("replicas_up", "Replicas that answer", ("group",))

    def note_file(self, name: str, is_right: bool) -> None:
        """Shows whether a file is in use as it is, and counts what is newly rejected."""
        self.reload_successful.labels(name).set(is_right)
        self.rejections_of_files.labels(name).inc(not is_right)

    def follow(self, file: Followed[Any]) -> None:
        """Shows whether a file of the operator is in use as it is, and counts what is rejected."""
        self.reload_successful.labels(file.name).set_function(lambda: file.problem is None)
        file.on_rejection = self.rejections_of_files.labels(file.name).inc


class StreamReport:
    """Reports one stream; `ended` writes its line of the access log."""

    def __init__(
        self,
        metrics: Metrics,
        protocol: str,
        key: str,
        model: ModelGroup,
        replica: str,
        stream: str,
        request: str | None,
    ):
        """stream: its name in the replica's log; request: the id of the client's request."""
        self._fields = {
            "request": request, "stream": stream, "protocol": protocol, "key": key, "model": model.name,
            "replica": replica,
        }  # fmt: skip
        self._metrics, self._protocol = metrics, protocol
        self._sample_rate_hz = model.sample_rate_hz
        self._monitor = SpeechMonitor(model.sample_rate_hz)
        self._remarks: dict[tuple[str, float], Remark] = {}
        self._started_s = time.monotonic()
        self._samples = self._new_samples = self._finals = self._words = self._moves = 0
        self._ending_s: list[float] = []
        self._final_latency = metrics.final_latency.labels(protocol)
        self._partial_latency = metrics.partial_latency.labels(protocol)
        self._key_audio_seconds = metrics.key_audio_seconds.labels(key)
        metrics.key_requests.labels(key).inc()
        self._span = StreamSpan(self._fields)
        metrics.streams_live.labels(protocol).inc()
        metrics.streams_started.labels(protocol).inc()

    @property
    def remarks(self) -> list[Remark]:
        """Remarks on the audio and its text."""
        return list(self._remarks.values())

    def note(self, remarks: Iterable[Remark]) -> None:
        """Takes all remarks on the audio so far; counts those that are new, and warns in the log."""
        for remark in remarks:
            key = remark.code, remark.start_s
            if key not in self._remarks:
                self._metrics.remarks.labels(remark.code).inc()
                fields = self._fields | {"remark": remark.code}
                log.warning("the audio of a stream %s", remark.text, extra={"fields": fields})
            self._remarks[key] = remark

    def moved(self, replica: str, stream: str, reason: str, replayed_s: float) -> None:
        """The stream has gone on at another replica, with this name in its log."""
        self._fields |= {"replica": replica, "stream": stream}
        self._moves += 1
        self._metrics.streams_moved.labels(reason).inc()
        self._metrics.replayed_seconds.inc(replayed_s)

    def pushed(self, samples: Samples) -> None:
        """Audio [n] was sent."""
        self._samples += len(samples)
        self._new_samples += len(samples)
        self._monitor.add(samples)

    def pop_audio_s(self) -> float:
        """Seconds of audio that were sent since the last call; they are counted for the key, too."""
        seconds, self._new_samples = self._new_samples / self._sample_rate_hz, 0
        if seconds:
            self._key_audio_seconds.inc(seconds)
        return seconds

    def result(self, result: StreamResult, start_s: float) -> None:
        """A result arrived. start_s: the time of the first sample in its recording."""
        self._monitor.note(result.new_words, result.audio_processed_s, result.text, result.is_final)
        self.note(remark._replace(start_s=start_s + remark.start_s) for remark in self._monitor.remarks)

    def ending(self) -> None:
        """A forced end or the end of the audio was sent."""
        self._ending_s.append(time.monotonic())

    def partial(self, round_trip_s: float) -> None:
        """A partial arrived."""
        self._partial_latency.observe(round_trip_s)

    def final(self, final: Final) -> None:
        """A final arrived."""
        self._finals += 1
        self._words += len(final.words)
        if (final.forced or final.is_last) and self._ending_s:
            self._final_latency.observe(time.monotonic() - self._ending_s.pop(0))

    def ended(self, reason: str) -> None:
        """The stream is over; reason: one of `NO_FAILURES`, or the code of an error."""
        audio_s = self._samples / self._sample_rate_hz
        self._metrics.streams_live.labels(self._protocol).dec()
        self._metrics.audio_seconds.labels(self._protocol).inc(audio_s)
        figures = {
            "audio_s": round(audio_s, 3),
            "duration_s": round(time.monotonic() - self._started_s, 3),
            "segments": self._finals,
            "words": self._words,
            **({"moves": self._moves} if self._moves else {}),
            "end": reason,
        }
        self._span.end(figures, None if reason in NO_FAILURES else reason)
        log.info("stream", extra={"fields": self._fields | figures})
