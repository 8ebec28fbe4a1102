"""The command `penstock-client`: streams audio files to a server and shows their transcripts."""

import argparse
import contextlib
import sys

from penstock_client.audio import read_audio
from penstock_client.client import Client
from penstock_client.errors import ClientError, StreamId
from penstock_client.option_arguments import add_option_arguments, read_options
from penstock_client.options import StreamOptions
from penstock_client.protocol import SAMPLE_RATE_HZ, check_stream_id
from penstock_client.report import JsonReport, PlainReport, Report
from penstock_client.version import __version__

_DEFAULT_URLS = {"grpc": "localhost:8001", "http": "localhost:8000"}
_FAILED, _INTERRUPTED = 1, 130


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="penstock-client", description="Stream audio files to a Penstock server and print their transcripts."
    )
    add = parser.add_argument
    add("audio", nargs="+", metavar="AUDIO", help="wav, flac or ogg file, any sample rate")
    add("--url", metavar="HOST:PORT", help="the server (localhost:8001, with --protocol http localhost:8000)")
    add("--protocol", choices=("grpc", "http"), default="grpc", help="how to talk to it (grpc)")
    add("--simulate-realtime", action="store_true", help="send audio at the pace at which it was spoken")
    add("--chunk-ms", type=_milliseconds, default=100.0, metavar="N", help="audio sent at once (100)")
    add("--stream-id", type=_stream_id, metavar="ID", help="name of the stream on the server (a unique one)")
    add("--timeout", type=_seconds, default=10.0, metavar="S", help="longest silence of the server (10)")
    add("--word-times", action="store_true", help="print each word's start and end in seconds, too")
    add("--version", action="version", version=f"penstock-client {__version__}")
    style = parser.add_mutually_exclusive_group()
    style.add_argument("--interim", action="store_true", help="show the transcript while it grows")
    style.add_argument("--json", action="store_true", help="print one JSON object a file")
    add_option_arguments(parser)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status: 1 if any file failed, 130 after Ctrl-C."""
    parser = build_parser()
    args = parser.parse_args(arguments)
    if args.stream_id is not None and len(args.audio) > 1:
        parser.error("--stream-id names one stream, so it goes with one AUDIO file")
    sys.stdout.reconfigure(errors="replace")
    try:
        options = read_options(args)
        client = Client(args.url or _DEFAULT_URLS[args.protocol], args.protocol, timeout_s=args.timeout)
    except ValueError as error:
        parser.error(str(error))
    try:
        with client:
            return _FAILED if _transcribe_all(client, options, args, _report(args)) else 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone
        return _FAILED


def _transcribe_all(client: Client, options: StreamOptions, args: argparse.Namespace, report: Report) -> int:
    """Streams one file after the other; returns how many failed."""
    failures = 0
    for path in args.audio:
        try:
            _transcribe(client, path, options, args, report)
        except ClientError as error:
            failures += 1
            message = str(error)
            named = message if message.startswith(f"{path}: ") else f"{path}: {message}"
            print(f"penstock-client: error: {named}", file=sys.stderr, flush=True)
    return failures


def _transcribe(client: Client, path: str, options: StreamOptions, args: argparse.Namespace, report: Report) -> None:
    samples = read_audio(path)
    with contextlib.ExitStack() as unless_done:
        unless_done.callback(report.abort)
        transcript = client.transcribe(
            samples,
            chunk_ms=args.chunk_ms,
            realtime=args.simulate_realtime,
            stream_id=args.stream_id,
            options=options,
            on_progress=report.progress,
        )
        unless_done.pop_all()
    report.finish(path, transcript, samples.size / SAMPLE_RATE_HZ)


def _report(args: argparse.Namespace) -> Report:
    if args.json:
        return JsonReport(sys.stdout)
    return PlainReport(
        sys.stdout, sys.stderr, names=len(args.audio) > 1, interim=args.interim, word_times=args.word_times
    )


def _stream_id(text: str) -> StreamId:
    """Digits are a numeric id, anything else a string."""
    try:
        return check_stream_id(int(text) if text.isascii() and text.isdigit() else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _seconds(text: str) -> float:
    return _number(text, 0.001, 86_400)


def _milliseconds(text: str) -> float:
    return _number(text, 1, 30_000)


def _number(text: str, least: float, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least:g} to {most:g}")
    return number


if __name__ == "__main__":
    sys.exit(main())
