"""The command `penstock-client`: streams audio files or a microphone to a server and shows the transcripts."""

import argparse
import contextlib
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

from penstock_client.audio.audio_pipe import AudioPipe, is_pipe
from penstock_client.cli.arguments import build_parser, check, read_connection_options, read_options, read_url
from penstock_client.cli.output import AudioName, JsonReport, PlainReport, Report, Streamed, SubtitleReport
from penstock_client.cli.streaming import Streamer
from penstock_client.client import Client
from penstock_client.playback import Progress
from penstock_common.audio.tracks import EACH, load_audio
from penstock_common.entry import abandon_output
from penstock_common.errors import ClientError
from penstock_common.results import Result
from penstock_common.samples import SAMPLE_RATE_HZ
from penstock_common.transcript import Transcript
from penstock_common.writing import printable

_FAILED = 1
_INFO_CHARACTERS = 200
"""The most of a parameter that a line shows; JSON has all."""
_MICROPHONE = AudioName("microphone")
"""Reported in place of a file."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns the exit status: 1 if any file failed, or if the output cannot be written."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # before gRPC is imported: its log is not for users of the command
    try:
        return 0 if _run(arguments) else _FAILED
    except OSError as error:  # errors of files and of the network are ClientErrors
        abandon_output()
        if not isinstance(error, BrokenPipeError):  # nothing reads our output any more
            reason = (error.strerror or str(error)).lower()
            print(f"penstock-client: error: OUTPUT_FAILED: standard output: {reason}", file=sys.stderr)
        return _FAILED


def _run(arguments: list[str] | None) -> bool:
    """Returns False if any file failed."""
    parser = build_parser()
    args = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        check(args)
        options = read_options(args)
        url, connection = read_url(args), read_connection_options(args)
        client = Client(url, args.protocol, timeout_s=args.timeout, connection_options=connection, align=args.align)
    except ValueError as error:
        parser.error(str(error))
    with client:
        if args.info:
            return _print_info(client, args.format == "json")
        report = _report(client, args)
        with _warnings_printed(report):
            return _transcribe_all(Streamer(client, options, args), report)


@contextlib.contextmanager
def _warnings_printed(report: Report) -> Iterator[None]:
    """Prints the library's warnings, after removing text that is redrawn in place."""

    class Printer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            report.abort()
            print(f"penstock-client: warning: {record.getMessage()}", file=sys.stderr, flush=True)

    logger, printer = logging.getLogger("penstock_client"), Printer()
    logger.addHandler(printer)
    try:
        yield
    finally:
        logger.removeHandler(printer)


def _print_info(client: Client, as_json: bool) -> bool:
    """Prints what the server offers, a line per parameter or as JSON. Returns False after an error."""
    try:
        parameters = client.server_info().parameters
    except ClientError as error:
        print(f"penstock-client: error: {error}", file=sys.stderr)
        return False
    if as_json:
        print(json.dumps(parameters))
        return True
    for name, value in parameters.items():
        if value:
            shown = value if len(value) <= _INFO_CHARACTERS else f"{value[:_INFO_CHARACTERS]}..."
            print(f"{printable(name):20} {printable(shown)}")
    return True


def _transcribe_all(streamer: Streamer, report: Report) -> bool:
    """Transcribes the microphone, or one file after the other. Returns False if any failed."""
    args = streamer.args
    if args.microphone is not False:
        is_done = _transcribe(_MICROPHONE, streamer.microphone, report)
        report.end_file()
        return is_done
    return all([_transcribe_audio(path, streamer, report) for path in args.audio])


def _transcribe_audio(path: str, streamer: Streamer, report: Report) -> bool:
    """Transcribes a file, each of its channels, or a pipe. Returns False if any failed."""
    done, args = [], streamer.args
    try:
        if args.raw or is_pipe(path):
            with AudioPipe(path, args.raw, args.channel, args.block_ms) as pipe:
                names = [AudioName(path, channel) for channel in pipe.names()]
                done.append(_transcribe_each(names, partial(streamer.pipe, pipe), report))
                remarks = pipe.remarks
        else:
            audio = load_audio(path, args.channel)
            remarks = audio.remarks
            for track in audio.tracks:
                name = AudioName(path, track.channel, track.samples.size / SAMPLE_RATE_HZ)
                done.append(_transcribe(name, partial(streamer.track, audio, track), report))
        report.end_file()
        for remark in remarks:
            print(f"penstock-client: warning: {path}: {remark.text}", file=sys.stderr, flush=True)
    except ClientError as error:
        return _fail(AudioName(path), error)
    return all(done)


def _transcribe(name: AudioName, stream: Callable[[Progress], Streamed], report: Report) -> bool:
    return _transcribe_each([name], lambda on_progress: [stream(*on_progress)], report)


def _transcribe_each(
    names: Sequence[AudioName], stream: Callable[[Sequence[Progress]], Sequence[Streamed]], report: Report
) -> bool:
    """Reports what `stream` returns, for each name; it receives a function for the progress of each.

    Returns False after a ClientError. The text so far is reported.
    """
    latest: dict[AudioName, Transcript] = {}

    def report_progress(name: AudioName, transcript: Transcript, results: Sequence[Result]) -> None:
        latest[name] = transcript
        report.progress(name, transcript, results)

    try:
        with contextlib.ExitStack() as unless_done:
            unless_done.callback(report.abort)
            all_streamed = stream([partial(report_progress, name) for name in names])
            unless_done.pop_all()
        for name, streamed in zip(names, all_streamed, strict=True):
            report.finish(name, streamed)
    except ClientError as error:
        shown = names[0] if len(names) == 1 else AudioName(names[0].path)
        lost = {name: Streamed(each, each.audio_processed_s) for name, each in latest.items() if each.segments}
        for name, streamed in lost.items():
            report.finish(name, streamed)
        ends_s = [each.missing_from_s for each in lost.values() if each.missing_from_s is not None]
        return _fail(shown, error, f"; the text ends at {min(ends_s):.2f} s of the audio" if ends_s else "")
    return True


def _fail(name: AudioName, error: ClientError, more: str = "") -> bool:
    """Prints the error after the name of its file; returns False."""
    named = error.text if error.text.startswith(f"{name}: ") else f"{name}: {error.text}"
    print(f"penstock-client: error: {error.code}: {named}{more}", file=sys.stderr, flush=True)
    return False


def _language(client: Client, args: argparse.Namespace) -> str:
    """The language that was asked for, or the model's only one; "" where neither is known."""
    only: Sequence[str] = ()
    if not args.language:
        with contextlib.suppress(ClientError):
            only = client.server_info().detected_languages
    return args.language or (only[0] if len(only) == 1 else "")


def _report(client: Client, args: argparse.Namespace) -> Report:
    if args.format == "json":
        return JsonReport(sys.stdout, interim=args.interim)
    if args.format != "text":
        return SubtitleReport(sys.stdout, args.format, cache(partial(_language, client, args)))
    has_names = len(args.audio) > 1 or args.channel == EACH
    return PlainReport(sys.stdout, sys.stderr, names=has_names, interim=args.interim, word_times=args.word_times)
