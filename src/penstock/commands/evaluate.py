"""`penstock evaluate`: word errors on recordings whose words are known, in this process or through a server."""

import argparse
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.config import AttentionContext, EncoderConfig
    from penstock.evaluation.manifest import Utterance
    from penstock.evaluation.report import Subject
    from penstock.evaluation.result import PassResult

_EXTRA = ("jiwer", "tqdm")
_IN_PROCESS_ONLY = ("model", "context", "decoder", "threads", "device")


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Registers the command."""
    parser = subparsers.add_parser(
        "evaluate",
        help="word and character errors on recordings whose words are known",
        description="Recognises every utterance of NeMo manifests, once for each context and decoder, and counts word "
        "and character errors. With --url the server's own model, context and decoder are measured.",
    )
    parser.add_argument("manifests", nargs="+", type=Path, metavar="MANIFEST", help="JSON lines: audio_filepath, text")
    parser.add_argument("--model", help="bundle, .nemo file or hub id (PENSTOCK_MODEL)")
    parser.add_argument("--context", action="append", metavar="L,R", help="may be repeated; `all` for all of the model")
    parser.add_argument(
        "--decoder", action="append", metavar="NAME", help="may be repeated; NAME or NAME:OPTION=VALUE,... (greedy)"
    )
    parser.add_argument("--url", metavar="HOST:PORT", help="gRPC address of a running server, instead of --model")
    parser.add_argument("--streams", type=int, default=16, metavar="N", help="utterances streamed at once (16)")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N utterances of each manifest")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure and every utterance there")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (1)")
    parser.add_argument("--device", metavar="NAME", help="cpu or cuda (cpu)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks everything that can be checked first. Exit status 1 if an utterance could not be recognised."""
    _check(args)
    from penstock.evaluation.manifest import read_manifest
    from penstock.evaluation.report import check_writable, write_report
    from penstock.evaluation.table import render

    if args.json:
        check_writable(args.json)
    utterances = [utterance for path in args.manifests for utterance in read_manifest(path, args.limit)]
    _warn_of_durations(utterances)
    results = []
    for subject, result in (_through_server if args.url else _in_process)(args, utterances):
        results.append(result)
        if args.json:  # after every pass: what is done stays if a later one is interrupted
            write_report(args.json, subject, utterances, results)
    print(render(subject, results), flush=True)
    failures = [failure for result in results for failure in result.failures]
    for failure in dict.fromkeys(failures):
        print(f"penstock: error: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _check(args: argparse.Namespace) -> None:
    for name in ("streams", "limit", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise PenstockError(f"--{name} is {value}, expected a positive number")
    if args.url:
        for name in _IN_PROCESS_ONLY:
            if getattr(args, name) is not None:
                raise PenstockError(f"--{name} does not go with --url: the server's own settings are measured")
    else:
        args.model = args.model or os.environ.get("PENSTOCK_MODEL")
        if not args.model:
            raise PenstockError("--model is missing: a bundle directory, a .nemo file or a hub id (or --url)")
    missing = [package for package in _EXTRA if find_spec(package) is None]
    if missing:
        raise PenstockError(f"{missing[0]} is not installed; it comes with the extra: pip install 'penstock[evaluate]'")


def _warn_of_durations(utterances: list["Utterance"]) -> None:
    odd = [utterance for utterance in utterances if utterance.is_stated_wrongly]
    if odd:
        where, more = f"{odd[0].manifest}:{odd[0].line}", f"; so do {len(odd) - 1} more" if len(odd) > 1 else ""
        print(
            f"penstock: warning: {where}: duration: {odd[0].stated_s:g} s, but {odd[0].audio} lasts "
            f"{odd[0].audio_s:g} s and is used as a whole{more}",
            file=sys.stderr,
        )


def _in_process(args: argparse.Namespace, utterances: list["Utterance"]) -> Iterator[tuple["Subject", "PassResult"]]:
    """A pass for each context and decoder."""
    from penstock.checkpoint import CONFIG_FILE, Checkpoint, sha256_of
    from penstock.cpu import prepare_process
    from penstock.device import check_device
    from penstock.evaluation.decoder_choice import GREEDY, parse_decoder
    from penstock.evaluation.in_process import recognise_in_process
    from penstock.evaluation.report import Subject
    from penstock.evaluation.result import Setting, run_pass
    from penstock.model_source import resolve_model
    from penstock.recognizer import StreamingRecognizer
    from penstock.reporting.hardware import describe_hardware

    decoders = [parse_decoder(text) for text in dict.fromkeys(args.decoder or [])] or [GREEDY]
    checkpoint = Checkpoint(resolve_model(args.model))
    contexts = _contexts(checkpoint.config.encoder, args.context)
    threads, device = args.threads or 1, args.device or "cpu"
    check_device(device)
    prepare_process(threads)
    model = {
        "path": args.model,
        "bundle": str(checkpoint.directory),
        "config_sha256": sha256_of(checkpoint.directory / CONFIG_FILE),
    }
    manifests = [str(path) for path in args.manifests]
    subject = Subject(model, None, describe_hardware(device), device, threads, args.streams, manifests)
    for context in contexts:
        for decoder in decoders:
            recognizer = StreamingRecognizer(
                checkpoint.directory, context, args.streams, device, **decoder.recognizer_arguments
            )
            outcomes = recognise_in_process(recognizer, utterances, decoder.stream_options)
            yield subject, run_pass(Setting(context, decoder), utterances, outcomes)


def _contexts(encoder: "EncoderConfig", wanted: list[str] | None) -> list["AttentionContext"]:
    """The model's first by default; in the order given, each once."""
    from penstock.settings import parse_context

    if not wanted:
        return [encoder.select_context(None)]
    found = []
    for text in wanted:
        found += encoder.contexts if text == "all" else [encoder.select_context(parse_context(text))]
    return list(dict.fromkeys(found))


def _through_server(
    args: argparse.Namespace, utterances: list["Utterance"]
) -> Iterator[tuple["Subject", "PassResult"]]:
    """The one pass there is."""
    from penstock.evaluation.report import Subject
    from penstock.evaluation.result import Setting, run_pass
    from penstock.evaluation.through_server import connect, recognise_through_server
    from penstock.reporting.hardware import describe_hardware

    with connect(args.url) as client:
        manifests = [str(path) for path in args.manifests]
        subject = Subject(None, args.url, describe_hardware(), None, None, args.streams, manifests)
        outcomes = recognise_through_server(client, utterances, args.streams)
        yield subject, run_pass(Setting(), utterances, outcomes)
