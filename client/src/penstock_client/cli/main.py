"""The command `penstock-client`: streams audio files or a microphone to a server and shows the transcripts."""

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial

from penstock_client.cli.arguments import (
    build_parser,
    check,
    input_descriptor,
    read_connection_options,
    read_options,
    read_url,
)
from penstock_client.cli.output import JsonReport, PlainReport, Report, SubtitleReport
from penstock_client.cli.terminal import EnterKey
from penstock_client.client import Client
from penstock_client.errors import ClientError
from penstock_client.microphone import Microphone
from penstock_client.options import StreamOptions
from penstock_client.playback import Pacer, Progress, Recording, SegmentEnds, dictate, play
from penstock_client.protocol import SAMPLE_RATE_HZ
from penstock_client.transcript import Transcript

_FAILED = 1
_MICROPHONE = "microphone"
"""Reported in place of a file name."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns the exit status: 1 if any file failed, or if the output cannot be written."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # before gRPC is imported: its log is not for users of the command
    parser = build_parser()
    args = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        check(args)
        options = read_options(args)
        connection_options = read_connection_options(args)
        client = Client(read_url(args), args.protocol, timeout_s=args.timeout, connection_options=connection_options)
    except ValueError as error:
        parser.error(str(error))
    try:
        with client:
            return 0 if _transcribe_all(client, options, args, _report(args)) else _FAILED
    except OSError as error:  # errors of files and of the network are ClientErrors
        _abandon_output()
        if not isinstance(error, BrokenPipeError):  # nothing reads our output any more
            reason = (error.strerror or str(error)).lower()
            print(f"penstock-client: error: OUTPUT_FAILED: standard output: {reason}", file=sys.stderr)
        return _FAILED


def _abandon_output() -> None:
    """Discards what could not be written: Python would try again at its end, and print a traceback."""
    with open(os.devnull, "w") as nowhere, contextlib.suppress(OSError, ValueError):
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _transcribe_all(client: Client, options: StreamOptions, args: argparse.Namespace, report: Report) -> bool:
    """Transcribes the microphone, or one file after the other. Returns False if any failed."""
    if args.microphone is not False:
        return _transcribe(_MICROPHONE, partial(_stream_microphone, client, options, args), report)
    return all([_transcribe(path, partial(_stream_file, client, options, args, path), report) for path in args.audio])


def _transcribe(name: str, stream: Callable[[Progress], tuple[Transcript, float]], report: Report) -> bool:
    """Reports what `stream` returns, the transcript and the seconds of audio. Returns False after a ClientError."""
    try:
        with contextlib.ExitStack() as unless_done:
            unless_done.callback(report.abort)
            transcript, audio_s = stream(partial(report.progress, name))
            unless_done.pop_all()
        report.finish(name, transcript, audio_s)
    except ClientError as error:
        named = error.text if error.text.startswith(f"{name}: ") else f"{name}: {error.text}"
        print(f"penstock-client: error: {error.code}: {named}", file=sys.stderr, flush=True)
        return False
    return True


def _stream_file(
    client: Client, options: StreamOptions, args: argparse.Namespace, path: str, on_progress: Progress
) -> tuple[Transcript, float]:
    recording = Recording(path, args.request_ms)
    with client.open_stream(args.stream_id, options) as stream:
        pacer = Pacer() if args.simulate_realtime else None
        play(stream, recording, pacer, on_progress, SegmentEnds(args.finalize_every))
    return stream.transcript, recording.samples.size / SAMPLE_RATE_HZ


def _stream_microphone(
    client: Client, options: StreamOptions, args: argparse.Namespace, on_progress: Progress
) -> tuple[Transcript, float]:
    """Streams until Ctrl-C or until the microphone is unplugged."""
    with (
        _segment_end_key(args) as is_segment_over,
        Microphone(args.microphone, args.request_ms) as microphone,
        client.open_stream(args.stream_id, options) as stream,
    ):
        audio_s = dictate(stream, microphone, on_progress, SegmentEnds(args.finalize_every), is_segment_over)
    return stream.transcript, audio_s


@contextlib.contextmanager
def _segment_end_key(args: argparse.Namespace) -> Iterator[Callable[[], bool]]:
    """A function that returns True after the Enter key, with --finalize-on-enter."""
    if not args.finalize_on_enter:
        yield lambda: False
        return
    with EnterKey(input_descriptor()) as enter_key:
        yield enter_key.was_pressed


def _report(args: argparse.Namespace) -> Report:
    if args.format == "json":
        return JsonReport(sys.stdout, interim=args.interim)
    if args.format != "text":
        return SubtitleReport(sys.stdout, args.format)
    return PlainReport(
        sys.stdout, sys.stderr, names=len(args.audio) > 1, interim=args.interim, word_times=args.word_times
    )
