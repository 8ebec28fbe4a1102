"""The options of a load test, as Locust's command line and its web page have them. Knows no network."""

import argparse
from pathlib import Path

from loadtest import plan
from loadtest.plan import Plan
from penstock_client.option_arguments import add_option_arguments

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_RECORDINGS = ROOT / "tests" / "data" / "an4" / "manifest.jsonl"
DEFAULT_OUT = ROOT / "build" / "loadtest"
BUNDLE = ROOT / "models" / "an4-rnnt-hybrid"
SHAPES = ("constant", "ramp", "sweep")


ON_WEB_PAGE = ("shape", "streams", "minutes", "stagger_seconds", "piece_ms", "seed")
"""What can be changed from one test to the next on Locust's page."""

CHOSEN_OPTIONS = (
    "--streams", "--minutes", "--shape", "--url", "--metrics-url", "--server-pid", "--protocol", "--out", "--setup",
)  # fmt: skip
"""What a command that starts servers of its own for a load of its own gives to Locust itself."""

STREAMING_OPTIONS = (
    "url", "protocol", "reply_timeout", "recordings", "piece_ms", "seed", "decoder", "beam_size", "n_best", "lm_weight",
    "boost_phrase", "boosted_phrases", "boost",
)  # fmt: skip
"""What the process that plays the streams has to know."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds them, the options of the streams (decoder, beam ...) among them."""
    add = parser.add_argument_group("Penstock").add_argument
    add("--url", default="localhost:8001", metavar="HOST:PORT", help="gRPC or HTTP port of the server (localhost:8001)")
    add("--protocol", choices=("grpc", "http"), default="grpc", help="(grpc)")
    add("--shape", choices=SHAPES, default="constant", help="how the number of streams goes (constant)")
    add("--streams", default="8", metavar="N[,N...]", help="constant: N; ramp: FIRST,LAST or LAST; sweep: N,N,... (8)")
    add("--minutes", type=float, default=1.0, help="time of measurement, of each step of a sweep; of a whole ramp (1)")
    add("--stagger-seconds", type=float, default=10.0, metavar="S", help="streams added at once start within S s (10)")
    add("--recordings", default=str(DEFAULT_RECORDINGS), metavar="FILE", help="NeMo manifest (the repository's AN4)")
    add("--piece-ms", type=float, default=100.0, metavar="MS", help="audio in each request (100)")
    add("--seed", type=int, default=0, help="of starts and of the order of recordings (0)")
    add(
        "--reply-timeout", type=float, default=30.0, metavar="S", help="a stream unanswered for so long has failed (30)"
    )
    add("--metrics-url", default="", metavar="URL", help="the server's http://HOST:PORT/metrics, for queue and compute")
    add("--server-pid", type=int, default=0, metavar="PID", help="tritonserver's process, if here: CPU and memory")
    add("--chunk-ms", type=float, default=0.0, metavar="MS", help="the server's chunk (found out from its answers)")
    add("--out", default=str(DEFAULT_OUT), metavar="DIR", help="for loadtest.json and loadtest.html (build/loadtest)")
    add("--setup", default="", metavar="FILE", help="JSON with what else the report is to say of server and machine")
    add("--no-html", action="store_true", help="write loadtest.json alone")
    add_option_arguments(parser)


def read_plan(options: argparse.Namespace) -> Plan:
    """The plan that the options ask for. ValueError names a bad one."""
    counts = stream_counts(options.streams)
    measured_s, stagger_s = 60 * options.minutes, options.stagger_seconds
    if stagger_s < 0:
        raise ValueError(f"--stagger-seconds is {stagger_s:g}, expected 0 or more")
    if options.shape == "sweep":
        return plan.sweep(counts, measured_s, stagger_s)
    if options.shape == "ramp" and len(counts) <= 2:
        return plan.ramp(counts[0] if len(counts) == 2 else 1, counts[-1], measured_s)
    if options.shape == "constant" and len(counts) == 1:
        return plan.constant(counts[0], measured_s, stagger_s)
    raise ValueError(f"--streams is {options.streams}: too many numbers for --shape {options.shape}")


def stream_counts(text: str) -> list[int]:
    """The numbers of --streams. ValueError for anything else than positive whole numbers with commas between them."""
    try:
        counts = [int(part) for part in str(text).split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise ValueError(
            f"--streams is {text!r}, expected a positive whole number, or several with commas between them"
        )
    return counts


def refuse_options(words: list[str], names: tuple[str, ...], why: str) -> None:
    """ValueError where `words`, which go on to Locust, hold an option (or its beginning) that is not theirs to set."""
    for word in words:
        given = word.partition("=")[0]
        if len(given) > 2 and any(name.startswith(given) for name in names):
            raise ValueError(f"{given}: {why}")


def piece_samples(piece_ms: float, sample_rate_hz: int) -> int:
    """Samples of a piece. ValueError where the server takes none so short or so long."""
    samples = round(piece_ms * sample_rate_hz / 1000)
    if not 1 <= samples <= 30 * sample_rate_hz:
        raise ValueError(f"--piece-ms is {piece_ms:g}, expected one sample to 30,000 ms")
    return samples
