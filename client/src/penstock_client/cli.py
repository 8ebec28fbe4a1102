"""The command `penstock-client`: streams audio files, or a microphone, to a server and shows their transcripts."""

import argparse
import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from penstock_client.audio import read_audio
from penstock_client.client import Client
from penstock_client.connection_arguments import (
    add_connection_arguments,
    number,
    read_connection_options,
    read_url,
)
from penstock_client.dictation import Progress, dictate, play
from penstock_client.enter_key import EnterKey
from penstock_client.errors import ClientError, StreamId
from penstock_client.microphone import Microphone
from penstock_client.option_arguments import add_option_arguments, read_options
from penstock_client.options import StreamOptions
from penstock_client.pacing import Pacer
from penstock_client.protocol import SAMPLE_RATE_HZ, check_stream_id
from penstock_client.recording import Recording, chosen_chunk_ms
from penstock_client.report import FORMATS, JsonReport, PlainReport, Report, SubtitleReport
from penstock_client.segment_ends import SegmentEnds
from penstock_client.transcript import Transcript
from penstock_client.version import __version__

_FAILED, _INTERRUPTED = 1, 130
_MICROPHONE = "microphone"
"""Stands where the name of a file does."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="penstock-client", description="Stream audio to a Penstock server and print its transcript."
    )
    add = parser.add_argument
    add("audio", nargs="*", metavar="AUDIO", help="wav, flac or ogg file, any sample rate")
    add(
        "--microphone",
        nargs="?",
        const=None,
        default=False,
        type=_device,
        metavar="DEVICE",
        help="in place of files; Ctrl-C ends it",
    )
    add("--simulate-realtime", action="store_true", help="send audio at the pace at which it was spoken")
    add("--chunk-ms", type=_milliseconds, metavar="N", help="audio sent at once (100; files as fast as they go: 1000)")
    add("--finalize-every", type=_segment_seconds, metavar="S", help="end a segment after so many seconds of audio")
    add("--finalize-on-enter", action="store_true", help="with --microphone: the Enter key ends a segment")
    add("--stream-id", type=_stream_id, metavar="ID", help="name of the stream on the server (a unique one)")
    add("--version", action="version", version=f"penstock-client {__version__}")
    _add_output_arguments(parser)
    add_connection_arguments(parser)
    add_option_arguments(parser)
    return parser


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--word-times", action="store_true", help="print each word's start and end in seconds, too")
    group.add_argument("--interim", action="store_true", help="show the transcript while it grows; json: each result")
    style = group.add_mutually_exclusive_group()
    style.add_argument("--format", choices=FORMATS, default="text", help="json is one object a file and line (text)")
    style.add_argument("--json", action="store_const", dest="format", const="json", help="short for --format json")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status: 1 if any file failed, 130 after Ctrl-C."""
    parser = build_parser()
    args = parser.parse_args(arguments)
    args.chunk_ms = chosen_chunk_ms(args.chunk_ms, args.simulate_realtime or args.microphone is not False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        _check(args)
        options = read_options(args)
        reach = read_connection_options(args)
        client = Client(read_url(args), args.protocol, timeout_s=args.timeout, connection_options=reach)
    except ValueError as error:
        parser.error(str(error))
    try:
        with client:
            transcribe = _transcribe_all if args.microphone is False else _transcribe_microphone
            return _FAILED if transcribe(client, options, args, _report(args)) else 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone
        return _FAILED


def _check(args: argparse.Namespace) -> None:
    """Refuses arguments that do not go together."""
    if bool(args.audio) == (args.microphone is not False):
        raise ValueError("expected one or more AUDIO files, or --microphone")
    if args.finalize_on_enter and args.microphone is False:
        raise ValueError("--finalize-on-enter goes with --microphone; for files there is --finalize-every")
    if args.finalize_on_enter and sys.platform == "win32":
        raise ValueError("--finalize-on-enter needs a system whose input can be asked without waiting; not Windows")
    if args.finalize_on_enter:
        _input_descriptor()  # its error names the option
    if args.interim and args.format in ("srt", "vtt"):
        raise ValueError(f"--interim goes with --format text and json, not {args.format}: its cues are made at the end")
    if args.stream_id is not None and len(args.audio) > 1:
        raise ValueError("--stream-id names one stream, so it goes with one AUDIO file")
    if args.format in ("srt", "vtt") and len(args.audio) > 1:
        raise ValueError(f"--format {args.format} writes one file of subtitles, so it goes with one AUDIO file")


def _transcribe_all(client: Client, options: StreamOptions, args: argparse.Namespace, report: Report) -> int:
    """Streams one file after the other; returns how many failed."""
    failures = 0
    for path in args.audio:
        try:
            _transcribe(client, path, options, args, report)
        except ClientError as error:
            failures += 1
            _tell(path, error)
    return failures


def _transcribe(client: Client, path: str, options: StreamOptions, args: argparse.Namespace, report: Report) -> None:
    samples = read_audio(path)
    with contextlib.ExitStack() as unless_done:
        unless_done.callback(report.abort)
        transcript = _hear(client, samples, options, args, partial(report.progress, path))
        unless_done.pop_all()
    report.finish(path, transcript, samples.size / SAMPLE_RATE_HZ)


def _hear(
    client: Client,
    samples: npt.NDArray[np.float32],
    options: StreamOptions,
    args: argparse.Namespace,
    on_progress: Progress,
) -> Transcript:
    """The transcript of samples [n], in one segment or several."""
    with client.open_stream(args.stream_id, options) as stream:
        pacer = Pacer() if args.simulate_realtime else None
        ends = SegmentEnds(args.finalize_every)
        play(stream, Recording(samples, args.chunk_ms), pacer, on_progress, ends)
        return stream.transcript


def _transcribe_microphone(client: Client, options: StreamOptions, args: argparse.Namespace, report: Report) -> int:
    """Streams the microphone until Ctrl-C or until it goes away; returns 1 for a failure."""
    try:
        with contextlib.ExitStack() as unless_done:
            unless_done.callback(report.abort)
            with (
                _end_of_segment(args) as is_asked_to_end,
                Microphone(args.microphone, args.chunk_ms) as microphone,
                client.open_stream(args.stream_id, options) as stream,
            ):
                ends = SegmentEnds(args.finalize_every)
                on_progress = partial(report.progress, _MICROPHONE)
                audio_s = dictate(stream, microphone, on_progress, ends, is_asked_to_end)
            unless_done.pop_all()
        report.finish(_MICROPHONE, stream.transcript, audio_s)
    except ClientError as error:
        _tell(_MICROPHONE, error)
        return 1
    return 0


@contextlib.contextmanager
def _end_of_segment(args: argparse.Namespace) -> Iterator[Callable[[], bool]]:
    """What tells whether the speaker wants the segment to end."""
    if not args.finalize_on_enter:
        yield lambda: False
        return
    with EnterKey(_input_descriptor()) as enter_key:
        yield enter_key.was_pressed


def _input_descriptor() -> int:
    """Of standard input, where lines come from. ValueError where there is none: closed, or not of the system."""
    try:
        if sys.stdin is not None:
            return sys.stdin.fileno()
    except ValueError:  # closed since, or replaced by something without a descriptor
        pass
    raise ValueError(
        "--finalize-on-enter reads standard input, which is closed or has no descriptor: give it a terminal or a pipe"
    )


def _tell(path: str, error: ClientError) -> None:
    message = str(error)
    named = message if message.startswith(f"{path}: ") else f"{path}: {message}"
    print(f"penstock-client: error: {named}", file=sys.stderr, flush=True)


def _report(args: argparse.Namespace) -> Report:
    if args.format == "json":
        return JsonReport(sys.stdout, interim=args.interim)
    if args.format != "text":
        return SubtitleReport(sys.stdout, args.format)
    return PlainReport(
        sys.stdout, sys.stderr, names=len(args.audio) > 1, interim=args.interim, word_times=args.word_times
    )


def _device(text: str) -> int | str:
    """Digits are the number of a device, anything else a part of its name."""
    return int(text) if text.isascii() and text.isdigit() else text


def _stream_id(text: str) -> StreamId:
    """Digits are a numeric id, anything else a string."""
    try:
        return check_stream_id(int(text) if text.isascii() and text.isdigit() else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _milliseconds(text: str) -> float:
    return number(text, 1, 30_000)


def _segment_seconds(text: str) -> float:
    return number(text, 0.1, 86_400)


if __name__ == "__main__":
    sys.exit(main())
