"""`penstock evaluate`: WER on recordings with reference texts, in this process or through a server."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from penstock.commands import note
from penstock.commands.transcribe import ATTENTION_HELP, check_attention
from penstock.errors import ManifestError, PackageError, SettingError, shown
from penstock.evaluation.normalizers import NORMALIZERS
from penstock.extras import install_command
from penstock.pipeline.options.decoding_config import ENDPOINT_OPTIONS
from penstock.serving.settings import MODEL, PRECISION
from penstock.transcription.shards import SHARD_HELP, parse_shard
from penstock_common.declaration import read_flags
from penstock_common.options import ENDPOINTS, FIGURE_LANGUAGES, StreamOptions

if TYPE_CHECKING:
    from penstock.evaluation.manifest import Utterance
    from penstock.evaluation.normalizers import Normalizer
    from penstock.evaluation.report import Conditions
    from penstock.evaluation.runs import DecoderChoice, RunResult
    from penstock.model.bundle import Checkpoint
    from penstock.model.config import AttentionContext, EncoderConfig

_SERVER_STREAMS = 16
_JOINED_SAMPLE_RATE_HZ = 16_000
_MAX_PAUSE_S = 60.0
_WINDOW = StreamOptions.option("window")
_IN_PROCESS_ONLY = (
    "model", "context", "attention", "decoder", "sweep", "speakers", "threads", "processes", "device", "precision",
)  # fmt: skip
_OF_MERGE = ("manifests", "merge", "json", "html", "force", "run", "command")


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Registers the command."""
    parser = subparsers.add_parser(
        "evaluate",
        description="Recognizes every utterance of NeMo manifests, once for each context and decoder, and counts word "
        "and character errors. With --url the server's own model, context and decoder are used.",
    )
    parser.add_argument("manifests", nargs="+", type=Path, metavar="MANIFEST", help="JSON lines: audio_filepath, text")
    MODEL.add_flag(parser)
    parser.add_argument("--context", action="append", metavar="L,R", help="repeatable; `all`: all of the checkpoint")
    parser.add_argument("--attention", metavar="NAME", help=ATTENTION_HELP)
    parser.add_argument(
        "--decoder",
        action="append",
        metavar="NAME",
        help="NAME or NAME:OPTION=VALUE,...; repeatable (greedy; ctc without a transducer)",
    )
    parser.add_argument(
        "--sweep", metavar="OPTION=VALUE,...", help="run each decoder once for each value of one of its options"
    )
    parser.add_argument(
        "--normalizer",
        choices=NORMALIZERS,
        help="of references and hypotheses (basic; none for models without punctuation)",
    )
    parser.add_argument("--url", metavar="HOST:PORT", help="gRPC address of a running server, instead of --model")
    parser.add_argument(
        "--streams", type=int, metavar="N", help="concurrent streams (16; without --url 16 in each process)"
    )
    parser.add_argument(
        "--numbers", choices=FIGURE_LANGUAGES, help="compare numbers as figures in both texts, by these rules"
    )
    for option in (*ENDPOINT_OPTIONS, _WINDOW):
        option.add_flag(parser)
    parser.add_argument("--join", type=int, metavar="N", help="join N utterances at a time into one stream")
    parser.add_argument("--pause", type=float, metavar="S", help="silence between joined utterances, in seconds (1)")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N utterances of each manifest")
    parser.add_argument("--shard", metavar="I/N", help=SHARD_HELP)
    parser.add_argument("--merge", action="store_true", help="merge the reports of all shards, in place of manifests")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure and utterance to this file")
    parser.add_argument("--force", action="store_true", help="replace existing files")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write one page with plots, aligned errors and the recordings"
    )
    parser.add_argument("--speakers", metavar="BUNDLE", help="a speaker model, for errors of who spoke")
    parser.add_argument(
        "--rttm", type=Path, metavar="PATH", help="with --speakers: a file or a folder of turns, for the DER"
    )
    parser.add_argument("--processes", type=int, metavar="N", help="processes that share the utterances (one per core)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads of each process (1)")
    parser.add_argument("--device", metavar="NAME", help="cpu or cuda (cpu)")
    PRECISION.add_flag(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks all arguments before the work. Exit status 1 if an utterance failed."""
    _check(args)
    from penstock.evaluation.manifest import read_shard
    from penstock.evaluation.report import render, report_document
    from penstock.reporting import check_writable, write_report

    for flag, path in (("--json", args.json), ("--html", args.html)):
        if path:
            check_writable(path, args.force, flag)
    if args.merge:
        return _merge(args)
    shard = parse_shard(args.shard)
    utterances, count = read_shard(args.manifests, shard, args.limit, bool(args.speakers))
    if not utterances:
        note(f"shard {shard} has none of the {count} utterances")
        return 0
    _warn_of_durations(utterances)
    utterances = _with_turns(args, utterances)
    results: list[RunResult] = []
    with TemporaryDirectory() as folder:
        if args.join:
            from penstock.evaluation.manifest import join_utterances

            utterances = join_utterances(utterances, args.join, _pause_s(args), _JOINED_SAMPLE_RATE_HZ, Path(folder))
        try:
            for conditions, result in (_through_server if args.url else _in_process)(args, utterances):
                if args.shard:
                    conditions = replace(conditions, shard=asdict(shard) | {"utterances": count})
                results.append(result)
                if args.json:  # after every run, so that an interruption loses only one
                    write_report(args.json, report_document(conditions, results))
        finally:  # an error or Ctrl-C in a later run does not lose those before it
            if results:
                try:  # before the text, whose reader may have ended
                    _write_page(args, conditions, results)
                finally:
                    print(render(conditions, results), flush=True)
    failures = [failure for result in results for failure in result.failures]
    for failure in dict.fromkeys(failures):
        note(f"error: {failure}")
    return 1 if failures else 0


def _merge(args: argparse.Namespace) -> int:
    from penstock.evaluation.merging import merge_reports
    from penstock.evaluation.report import render, report_document
    from penstock.reporting import write_report

    if given := [name for name, value in vars(args).items() if value and name not in _OF_MERGE]:
        raise SettingError(f"--{given[0].replace('_', '-')} cannot be combined with --merge")
    conditions, results = merge_reports(args.manifests)
    if args.json:
        write_report(args.json, report_document(conditions, results))
    _write_page(args, conditions, results)
    print(render(conditions, results), flush=True)
    return 1 if any(result.failures for result in results) else 0


def _with_turns(args: argparse.Namespace, utterances: list["Utterance"]) -> list["Utterance"]:
    """The utterances with the turns of `--rttm`. Checks that a speaker model has something to be compared with."""
    from penstock.evaluation.diarization import reference_turns

    if args.rttm:
        found = reference_turns(args.rttm, utterances)
        return [replace(utterance, turns=turns) for utterance, turns in zip(utterances, found, strict=True)]
    if args.speakers and not any(utterance.speaker_texts for utterance in utterances):
        raise SettingError("--speakers needs --rttm PATH, or `segments` with speaker and text in a manifest")
    return utterances


def _write_page(args: argparse.Namespace, conditions: "Conditions", results: list["RunResult"]) -> None:
    from penstock.evaluation.page import write_page

    if not args.html:
        return
    option = args.sweep.partition("=")[0] if args.sweep else None
    for problem in write_page(args.html, conditions, results, option):
        note(f"warning: {args.html}: {problem}")


def _normalizer(args: argparse.Namespace, writes_sentences: bool) -> "Normalizer":
    """The one that is chosen, else that for the model's texts."""
    from penstock.evaluation.normalizers import BASIC, NONE, PACKAGE, Normalizer

    name = args.normalizer or (BASIC if writes_sentences else NONE)
    if name != NONE:
        _check_package(PACKAGE)
    return Normalizer(name, args.numbers or "")


def _keep_words(utterances: list["Utterance"], normalizer: "Normalizer") -> tuple[list["Utterance"], list[str]]:
    """The utterances whose references keep words, or have none; the lines of the others, which are named on stderr."""
    kept: list[Utterance] = []
    emptied: list[Utterance] = []
    for each in utterances:
        has_word = any(character.isalnum() for character in normalizer(each.reference))
        (kept if has_word or not each.reference.strip() else emptied).append(each)
    if emptied:
        first = emptied[0]
        text = f"{first.manifest}:{first.line}: text: {shown(first.reference)} has no word after {normalizer}"
        if not kept:
            raise ManifestError(f"{text}; nor has any other text")
        note(f"warning: {text}; left out: {len(emptied)} of {len(utterances)}")
    return kept, [f"{each.manifest}:{each.line}" for each in emptied]


def _window(args: argparse.Namespace) -> str | None:
    window: str | None = _WINDOW.read({}, _WINDOW.given(args))
    return window


def _pause_s(args: argparse.Namespace) -> float:
    return 1.0 if args.pause is None else float(args.pause)


def _conditions(args: argparse.Namespace, normalizer: "Normalizer", left_out: list[str]) -> dict[str, Any]:
    """Conditions that the arguments say, and the normalizer."""
    given = {name: value for name, value in read_flags(ENDPOINT_OPTIONS, args).items() if value}
    has_endpoints = any(name in given for name in (*ENDPOINTS, "endpoint_tokens"))
    return {
        "manifests": [str(path) for path in args.manifests],
        "normalizer": str(normalizer),
        "left_out": left_out,
        "endpointing": ", ".join(f"{name} {value}" for name, value in given.items()) if has_endpoints else None,
        "window": _window(args),
        "joined": f"{args.join} utterances, pauses of {_pause_s(args):g} s" if args.join else None,
    }


def _check(args: argparse.Namespace) -> None:
    read_flags(ENDPOINT_OPTIONS, args)  # names a wrong value
    _window(args)
    if args.pause is not None and not args.join:
        raise SettingError("--pause needs --join N")
    if not 0 <= _pause_s(args) <= _MAX_PAUSE_S:  # rejects NaN too
        raise SettingError(f"--pause is {args.pause:g}, expected 0 to {_MAX_PAUSE_S:g} seconds")
    for name in ("streams", "limit", "threads", "processes", "join"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise SettingError(f"--{name} is {value}, expected a positive number")
    if args.url:
        for name in _IN_PROCESS_ONLY:
            if getattr(args, name) is not None:
                raise SettingError(f"--{name} cannot be combined with --url, which uses the server's own settings")
    if args.rttm and not args.speakers:
        raise SettingError("--rttm needs --speakers BUNDLE")
    if args.shard and args.join:
        raise SettingError("--shard is given with --join; accepted: utterances as they are")
    if args.speakers and args.join:
        raise SettingError("--speakers is given with --join; accepted: recordings as they are")
    _check_package("jiwer")
    if args.html:
        _check_package("matplotlib")
        _check_package("av", "media")


def _check_package(package: str, extra: str = "evaluate") -> None:
    if find_spec(package.replace("-", "_")) is None:
        raise PackageError(f"{package} is not installed: {install_command(extra)}")


def _warn_of_durations(utterances: list["Utterance"]) -> None:
    odd = [utterance for utterance in utterances if utterance.is_stated_wrongly]
    if odd:
        first, more = odd[0], f"; so do {len(odd) - 1} more" if len(odd) > 1 else ""
        used = "is used as a whole" if first.offset_s is None else "ends with its file"
        lasts = f"duration: {first.stated_s:g} s, but {first.part} lasts {first.audio_s:g} s and {used}"
        note(f"warning: {first.manifest}:{first.line}: {lasts}{more}")


def _in_process(args: argparse.Namespace, utterances: list["Utterance"]) -> Iterator[tuple["Conditions", "RunResult"]]:
    """One run per context and decoder."""
    from penstock.encoder.precision import resolve_precision
    from penstock.evaluation.report import Conditions
    from penstock.evaluation.runs import (
        FirstStep,
        Variant,
        collect,
        parse_decoder,
        recognize_in_process,
        sweep_decoders,
    )
    from penstock.model.bundle import Checkpoint
    from penstock.model.bundle_files import CONFIG_FILE, sha256_of
    from penstock.model.resolve import BUNDLED_MODEL_NOTICE, resolve_or_bundled
    from penstock.model.tokenizer import Tokenizer
    from penstock.pipeline.options.decoding_config import DEFAULT_DECODING
    from penstock.pipeline.options.offers import offer_decoders
    from penstock.reporting import describe_hardware
    from penstock.runtime import check_device, prepare_process
    from penstock.speakers.bundle import SpeakerCheckpoint
    from penstock.speakers.diarizer import Diarizer
    from penstock.transcription.offline import open_recognizer
    from penstock.transcription.processes import divide

    decoders = [parse_decoder(text) for text in sweep_decoders(args.decoder or [], args.sweep)]
    source = MODEL.read(given=MODEL.given(args))
    if not source:
        note(BUNDLED_MODEL_NOTICE)
    checkpoint = Checkpoint(resolve_or_bundled(source))
    default = offer_decoders(checkpoint.config, DEFAULT_DECODING).default
    decoders = decoders or [parse_decoder(text) for text in sweep_decoders([default], args.sweep)]
    for decoder in decoders:
        _check_decoder(decoder, checkpoint)
    contexts = _contexts(checkpoint.config.encoder, args.context)
    endpointing, window = read_flags(ENDPOINT_OPTIONS, args), _window(args)
    check_attention(args, checkpoint.config.encoder.is_offline, window)
    normalizer = _normalizer(args, Tokenizer(checkpoint.tokenizer_path).has_punctuation_and_capitals)
    utterances, left_out = _keep_words(utterances, normalizer)
    threads, device = args.threads or 1, args.device or "cpu"
    check_device(device, "--device")
    precision = resolve_precision(
        checkpoint.choose_precision(PRECISION.read({}, PRECISION.given(args)), device), device
    )
    wanted = args.processes or (None if device == "cpu" else 1)  # a GPU is used from one process
    processes, streams = divide(len(utterances), len(utterances), args.streams, threads, wanted)
    prepare_process(threads if processes == 1 else 1)
    model = {
        "path": str(source or checkpoint.directory),
        "bundle": str(checkpoint.directory),
        "config_sha256": sha256_of(checkpoint.directory / CONFIG_FILE),
    }
    given = _conditions(args, normalizer, left_out) | {"model": model, "device": device, "precision": precision}
    given |= {"threads": threads, "processes": processes}
    conditions = Conditions(describe_hardware(device), streams * processes, **given)
    diarizer = Diarizer(SpeakerCheckpoint(args.speakers), precision) if args.speakers else None
    for context in contexts:
        for decoder in decoders:
            decoding = decoder.decoding.replace(**endpointing)
            recognizer = open_recognizer(
                checkpoint, context, streams, device, decoding, args.attention, window, precision
            )
            first_step = FirstStep()
            outcomes = recognize_in_process(
                recognizer, utterances, decoder, processes, threads, window, first_step, diarizer
            )
            yield conditions, collect(Variant(context, decoder), utterances, outcomes, normalizer, first_step)


def _check_decoder(decoder: "DecoderChoice", checkpoint: "Checkpoint") -> None:
    """Rejects what the model or a file does not allow now, and not after the runs before it."""
    from penstock.pipeline.options.offers import check_decoding_files, offer_decoders, offer_languages

    if problem := offer_decoders(checkpoint.config, decoder.decoding).problem_with(decoder.name):
        raise SettingError(problem)
    offer_languages(checkpoint, decoder.decoding)
    check_decoding_files(decoder.decoding, checkpoint)


def _contexts(encoder: "EncoderConfig", selected: list[str] | None) -> Sequence["AttentionContext | None"]:
    """Contexts in the order given, without duplicates; the checkpoint's default if none is given.

    None for an offline model.
    """
    from penstock.model.config import parse_context

    if encoder.is_offline:
        if selected:
            raise SettingError(f"--context is {shown(selected[0])}, but the model is an offline model; accepted: none")
        return [None]
    if not selected:
        return [encoder.select_context(None)]
    contexts: list[AttentionContext] = []
    for text in selected:
        contexts += encoder.contexts if text == "all" else [encoder.select_context(parse_context(text))]
    return list(dict.fromkeys(contexts))


def _through_server(
    args: argparse.Namespace, utterances: list["Utterance"]
) -> Iterator[tuple["Conditions", "RunResult"]]:
    """One run with the server's own settings."""
    from penstock.evaluation.report import Conditions
    from penstock.evaluation.runs import Variant, collect
    from penstock.evaluation.server_runs import connect, recognize_through_server, server_info
    from penstock.model.tokenizer import writes_sentences
    from penstock.reporting import describe_hardware

    streams = args.streams or _SERVER_STREAMS
    with connect(args.url, lambda: note("the server is full; waiting for a slot")) as client:
        info = server_info(client)  # its alphabet is empty where the model writes every character
        normalizer = _normalizer(args, not info.alphabet or writes_sentences("".join(info.alphabet)))
        utterances, left_out = _keep_words(utterances, normalizer)
        given = _conditions(args, normalizer, left_out)
        conditions = Conditions(describe_hardware(), streams, server=args.url, **given)
        options = read_flags(ENDPOINT_OPTIONS, args) | {"window": _window(args)}
        outcomes = recognize_through_server(client, utterances, streams, bool(info.languages), options)
        yield conditions, collect(Variant(), utterances, outcomes, normalizer)
