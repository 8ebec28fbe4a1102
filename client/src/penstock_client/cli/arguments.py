"""The command line: its parser, and how arguments become a `StreamOptions` and `ConnectionOptions`. No network."""

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from penstock_client.cli.output import FORMATS
from penstock_client.connection import ConnectionOptions, ProtocolName
from penstock_client.playback import choose_request_ms
from penstock_client.version import __version__
from penstock_common.audio.pcm import RawEncoding, RawFormat
from penstock_common.audio.tracks import CHANNELS, MIX, Channel, parse_channel
from penstock_common.command_parser import Parser
from penstock_common.declaration import read_flags
from penstock_common.options import BoostedPhrase, StreamOptions, parse_phrase, split_decoder_flag

_GRPC_URL, _HTTP_URL = "localhost:8001", "localhost:8000"
_URL_VARIABLE = "PENSTOCK_URL"
_FLAGS = [option for option in StreamOptions.options() if option.name != "boosted_phrases"]
"""Stream options of one value."""
_ALIASES = {"n_best": ("--max-alternatives",)}


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = Parser(prog="penstock-client", description="Stream audio to a Penstock server and print its transcript.")
    add = parser.add_argument
    add("audio", nargs="*", metavar="AUDIO", help="audio or video file; - is standard input")
    live = "stream the microphone instead of files; Ctrl-C ends the audio"
    add("--microphone", nargs="?", const=None, default=False, type=_device, metavar="DEVICE", help=live)
    add("--simulate-realtime", action="store_true", help="send audio at the pace of speech")
    size = "audio per request (100 for live audio and --simulate-realtime, else 1000)"
    add("--request-ms", type=_number(1, 30_000), metavar="N", help=size)
    add("--channel", type=_channel, default=MIX, metavar="NAME", help=f"of several channels: {CHANNELS} (mix)")
    add("--finalize-every", type=_number(0.1), metavar="S", help="end a segment every S seconds of audio")
    add("--info", action="store_true", help="print what the server offers instead; with --format json as JSON")
    add("--version", action="version", version=f"penstock-client {__version__}")
    _add_raw_arguments(parser)
    _add_output_arguments(parser)
    _add_connection_arguments(parser)
    add_option_arguments(parser)
    return parser


def add_option_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that `read_options` reads, as a group."""
    group = parser.add_argument_group("decoding options of the stream (default: the server's)")
    for option in _FLAGS:
        option.add_flag(group, *_ALIASES.get(option.name, ()))
    add = group.add_argument
    about = "boost this phrase; repeatable"
    add("--boost-phrase", "--boosted-words", action="append", default=[], metavar="TEXT[:BOOST]", help=about)
    add("--boosted-phrases", metavar="FILE", help="file of boosted phrases, one per line")


def check(args: argparse.Namespace) -> None:
    """Rejects arguments that contradict each other with a ValueError, and sets the default of --request-ms."""
    is_live = args.microphone is not False
    if args.info and (args.audio or is_live):
        raise ValueError("--info prints what the server offers, and takes no audio")
    if not args.info and bool(args.audio) == is_live:
        raise ValueError("expected one or more AUDIO files, or --microphone")
    if args.interim and args.format in ("srt", "vtt"):
        raise ValueError(f"--interim requires --format text or json, not {args.format}, which is written at the end")
    if args.format in ("srt", "vtt") and len(args.audio) > 1:
        raise ValueError(f"--format {args.format} writes one file of subtitles, so it takes one AUDIO file")
    if is_live and args.channel != MIX:
        raise ValueError("--channel is for files and pipes; the microphone has one channel")
    args.raw = _read_raw_format(args)
    args.block_ms = args.request_ms
    args.request_ms = choose_request_ms(args.request_ms, args.simulate_realtime or is_live)


def _read_raw_format(args: argparse.Namespace) -> RawFormat | None:
    """The format of raw audio, if it is given. Raises ValueError."""
    if args.raw_format is None:
        if args.sample_rate is not None or args.channels is not None:
            raise ValueError("--sample-rate and --channels describe raw audio: they require --raw-format")
        return None
    if args.microphone is not False:
        raise ValueError("--raw-format is for files and pipes, not for the microphone")
    if args.sample_rate is None:
        raise ValueError("--raw-format requires --sample-rate, for example --sample-rate 8000")
    return RawFormat(args.raw_format, args.sample_rate, 1 if args.channels is None else args.channels)


def read_url(args: argparse.Namespace) -> str:
    """The server's host:port: --url, the variable PENSTOCK_URL, or the protocol's default."""
    return args.url or os.environ.get(_URL_VARIABLE) or (_GRPC_URL if args.protocol.startswith("grpc") else _HTTP_URL)


def read_connection_options(args: argparse.Namespace) -> ConnectionOptions:
    """The connection options that the arguments give. Raises ValueError for bad ones."""
    return ConnectionOptions(
        root_certificates=args.root_certificates,
        client_certificate=args.client_certificate,
        client_key=args.client_key,
        headers=dict(_header(text) for text in args.header),
        connect_retry_s=args.connect_retry,
        wait_for_slot_s=args.wait_for_slot,
        reconnect_s=args.reconnect,
    )


def read_options(args: argparse.Namespace) -> StreamOptions:
    """The stream options that the arguments give. Raises ValueError for bad ones, and for an unreadable file."""
    split_decoder_flag(args, _FLAGS)
    phrases = [parse_phrase("--boost-phrase", text) for text in args.boost_phrase]
    if args.boosted_phrases is not None:
        phrases += _read_phrases(args.boosted_phrases)
    elif args.boost is not None and not phrases:
        raise ValueError("--boost requires --boost-phrase or --boosted-phrases")
    return StreamOptions(boosted_phrases=phrases, **read_flags(_FLAGS, args))


def _add_raw_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("raw audio, without a header").add_argument
    add("--raw-format", choices=get_args(RawEncoding), help="encoding of the samples")
    add("--sample-rate", type=int, metavar="HZ", help="sample rate, required with --raw-format")
    add("--channels", type=int, metavar="N", help="number of interleaved channels (1)")


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--word-times", action="store_true", help="also print each word's start and end in seconds")
    group.add_argument("--interim", action="store_true", help="show interim results; json: one line per result")
    style = group.add_mutually_exclusive_group()
    about = "output format (text); json: one line with an object per file"
    style.add_argument("--format", choices=FORMATS, default="text", help=about)
    style.add_argument("--json", action="store_const", dest="format", const="json", help="short for --format json")


def _add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("server").add_argument
    address = f"address of the server (the variable {_URL_VARIABLE}, else {_GRPC_URL}, for HTTP {_HTTP_URL})"
    add("--url", metavar="HOST:PORT", help=address)
    add("--protocol", choices=get_args(ProtocolName), default="grpc", help="grpcs and https use TLS (grpc)")
    add("--timeout", type=_number(0.001), default=10.0, metavar="S", help="maximum seconds to wait for a response (10)")
    for name, default_s, text in (
        ("--connect-retry", 1.0, "repeat failed connection attempts for S seconds (1)"),
        ("--wait-for-slot", 0.0, "wait up to S seconds while the server is full or stopping (0)"),
        (
            "--reconnect",
            60.0,
            "after a lost connection, reconnect for up to S seconds and resume without a gap; 0: fail (60)",
        ),
    ):
        add(name, type=_number(0), default=default_s, metavar="S", help=text)
    add("--no-align", dest="align", action="store_false", help="send audio at once, not in whole chunks of the model")
    add("--header", action="append", default=[], metavar="NAME:VALUE", help="header to send; repeatable")
    add("--root-certificates", metavar="FILE", help="PEM file of trusted certificate authorities")
    add("--client-certificate", metavar="FILE", help="PEM file of the client's certificate, with --client-key")
    add("--client-key", metavar="FILE", help="PEM file of its key")


def _read_phrases(path: str) -> list[BoostedPhrase]:
    """The phrases in a text file, one per line; empty lines are skipped."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise ValueError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:
        raise ValueError(f"{path}: not a UTF-8 text file") from error
    return [parse_phrase(f"{path}, line {number}", line) for number, line in enumerate(lines, start=1) if line.strip()]


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise ValueError(f"--header: expected NAME:VALUE, found {name!r} without a colon")
    return name.strip(), value.strip()


def _device(text: str) -> int | str:
    """Digits are the number of a device, anything else is a part of its name."""
    return int(text) if text.isascii() and text.isdigit() else text


def _channel(text: str) -> Channel:
    try:
        return parse_channel(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _number(minimum: float, maximum: float = 86_400) -> Callable[[str], float]:
    """Reads a number between these limits."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not minimum <= value <= maximum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {minimum:g} to {maximum:g}")
        return value

    return read
