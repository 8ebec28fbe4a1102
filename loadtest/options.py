"""The options of a load test, on Locust's command line and its web page, and the plan that follows from them."""

import argparse
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock_client import StreamOptions
from penstock_client.cli.arguments import add_option_arguments, read_options
from penstock_common.options import ENDPOINTS

SETTLE_S = 2.0
"""Between the last stream's start and the window: Locust needs a moment to spawn users."""
ROOT = Path(__file__).resolve().parents[1]
DEFAULT_RECORDINGS = ROOT / "tests" / "data" / "an4" / "manifest.jsonl"
DEFAULT_OUT = ROOT / "build" / "loadtest"
BUNDLE = ROOT / "models" / "an4-rnnt-hybrid"
DIRECT, RIVA, REALTIME = TARGETS = ("direct", "gateway-riva", "gateway-realtime")
GATEWAYS = (RIVA, REALTIME)
"""Targets that run already; of the other one a command starts a server."""

ON_WEB_PAGE = ("streams", "minutes", "stagger_seconds", "request_ms", "no_align", "seed")
"""Options that can be changed on Locust's page from one test to the next."""

CHOSEN_OPTIONS = (
    "--streams", "--minutes", "--url", "--metrics-url", "--server-pid", "--gateway-pid", "--protocol",
    "--target", "--out", "--setup",
)  # fmt: skip
"""Options that a command with servers and a load of its own passes to Locust itself."""

STREAMING_OPTIONS = (
    "url", "protocol", "target", "no_align", "reply_timeout", "recordings", "request_ms", "seed",
    "boost_phrase", *StreamOptions.model_fields,
)  # fmt: skip
"""Options that the process that plays the streams needs."""


@dataclass(frozen=True)
class Window:
    """One measurement, in seconds from the start of the test."""

    streams: int
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Plan:
    """A test from its start to its end."""

    duration_s: float
    stagger_s: float
    """Streams that are added at once start within this time."""
    streams_at: Callable[[float], int]
    """Returns the number of streams at a moment before the end."""
    windows: tuple[Window, ...]


def sweep(counts: Sequence[int], measured_s: float, stagger_s: float) -> Plan:
    """Plans one number of streams after another, each measured for `measured_s` seconds; one number: constant load."""
    if not counts or min(counts) < 1 or not measured_s > 0:
        raise ValueError(f"streams are {list(counts)} for {measured_s:g} s, expected positive numbers")
    warm_up_s = stagger_s + SETTLE_S
    step_s = warm_up_s + measured_s
    windows = tuple(Window(streams, i * step_s + warm_up_s, (i + 1) * step_s) for i, streams in enumerate(counts))
    return Plan(
        step_s * len(counts), stagger_s, lambda now_s: counts[min(int(now_s / step_s), len(counts) - 1)], windows
    )


class Schedule:
    """Start and recordings of user `number` on process `process`: random, but equal for equal seeds."""

    def __init__(self, seed: int, process: int, number: int):
        self._random = random.Random(f"{seed}/{process}/{number}")
        self._start = self._random.random()

    def start_s(self, stagger_s: float) -> float:
        """Seconds from the user's creation to its first recording, uniform over [0, stagger_s)."""
        return self._start * stagger_s

    def recordings(self, count: int) -> Iterator[int]:
        """Yields numbers below `count` without end: the same random order again and again."""
        order = self._random.sample(range(count), count)
        while True:
            yield from order


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options, those of the streams (decoder, beam ...) included."""
    group = parser.add_argument_group("Penstock")
    add = group.add_argument
    add("--url", default="localhost:8001", metavar="HOST:PORT", help="port of the server or gateway (localhost:8001)")
    add_target_arguments(group)
    add("--protocol", choices=("grpc", "http"), default="grpc", help="protocol (grpc)")
    add("--streams", default="8", metavar="N[,N...]", help="streams; of several numbers each is tested in turn (8)")
    add("--minutes", type=float, default=1.0, help="measured minutes of each number of streams (1)")
    add("--stagger-seconds", type=float, default=10.0, metavar="S", help="streams added at once start within S s (10)")
    add("--recordings", default=str(DEFAULT_RECORDINGS), metavar="FILE", help="NeMo manifest (the repository's AN4)")
    add("--request-ms", type=float, default=100.0, metavar="MS", help="audio per part, as from a microphone (100)")
    add("--no-align", action="store_true", help="make a request of each part, not of whole chunks of the model")
    add("--seed", type=int, default=0, help="random seed of start times and of the order of recordings (0)")
    add("--reply-timeout", type=float, default=30.0, metavar="S", help="a stream fails after S s without a reply (30)")
    add("--chunk-ms", type=float, default=0.0, metavar="MS", help="duration of the model's chunk (inferred)")
    add("--out", default=str(DEFAULT_OUT), metavar="DIR", help="folder of the reports (build/loadtest)")
    add("--setup", type=json.loads, default={}, metavar="JSON", help="facts for the report: command, server")
    add_option_arguments(parser)


def add_target_arguments(parser: argparse._ActionsContainer) -> None:
    """Adds the options of what is tested, beside its address."""
    add = parser.add_argument
    add("--target", choices=TARGETS, default=DIRECT, help="AsyncClient's streams, or a running gateway's (direct)")
    add("--metrics-url", default="", metavar="URL", help="http://HOST:PORT/metrics, for queue and compute time")
    add("--server-pid", type=int, default=0, metavar="PID", help="local tritonserver process, for CPU and memory")
    add("--gateway-pid", type=int, default=0, metavar="PID", help="local gateway process, for CPU and memory")


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a command that starts a server of its own and Locust."""
    add = parser.add_argument
    add("--protocol", choices=("grpc", "http"), default="grpc", help="protocol (grpc)")
    add("--model", type=Path, default=BUNDLE, metavar="BUNDLE", help="bundle to serve")
    add("--context", metavar="L,R", help="attention context to serve (with 560 ms chunks, else the first)")
    add("--threads", type=int, default=1, metavar="N", help="CPU threads per model (1)")
    add("--processes", type=int, metavar="N", help="load generator processes (one per 256 streams)")


def read_plan(options: argparse.Namespace) -> Plan:
    """Returns the plan of the options. ValueError names an invalid one."""
    counts = stream_counts(options.streams)
    measured_s, stagger_s = 60 * options.minutes, options.stagger_seconds
    if stagger_s < 0:
        raise ValueError(f"--stagger-seconds is {stagger_s:g}, expected 0 or more")
    _check_answers(options)
    return sweep(counts, measured_s, stagger_s)


def _check_answers(options: argparse.Namespace) -> None:
    """Raises ValueError for options with which an answer does not tell the request or the chunk that it completes."""
    if options.no_align and options.target != DIRECT:
        raise ValueError(f"--no-align: requests of --target {options.target} are not the load test's to choose")
    chosen = read_options(options).given()
    is_for_gateway = not chosen.keys() - {*ENDPOINTS, "speakers"} and chosen.get("speakers", "on") in ("on", "off")
    if options.target in GATEWAYS and not is_for_gateway:
        message = "options of streams, without --speakers on, are for direct streams"
        raise ValueError(f"--target {options.target}: {message}")
    for name in ENDPOINTS:
        if chosen.get(name):
            flag = StreamOptions.option(name).flag
            raise ValueError(f"{flag}: a load test allows no endpoints: a request with one has several results")


def stream_counts(text: str) -> list[int]:
    """Reads the numbers of --streams. ValueError for anything but positive integers with commas between them."""
    try:
        counts = [int(part) for part in str(text).split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise ValueError(f"--streams is {text!r}, expected positive integers with commas between them")
    return counts


def reject_options(words: list[str], why: str) -> None:
    """Raises ValueError where `words`, which are passed to Locust, hold one of CHOSEN_OPTIONS or its beginning."""
    for word in words:
        given = word.partition("=")[0]
        if len(given) > 2 and any(name.startswith(given) for name in CHOSEN_OPTIONS):
            raise ValueError(f"{given}: {why}")


def request_samples(request_ms: float, sample_rate_hz: int) -> int:
    """Returns the samples of a request. ValueError where the server rejects that size."""
    samples = round(request_ms * sample_rate_hz / 1000)
    if not 1 <= samples <= 30 * sample_rate_hz:
        raise ValueError(f"--request-ms is {request_ms:g}, expected one sample to 30,000 ms")
    return samples
