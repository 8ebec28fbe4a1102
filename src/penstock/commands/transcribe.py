"""`penstock transcribe`: audio files to text without a server, in as many processes as there are cores."""

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.commands import note
from penstock.errors import AudioError, OutputError, SettingError, shown
from penstock.frontend.audio_file import named
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.offers import offer_decoders
from penstock.pipeline.options.stream_options import MAX_REQUEST_S
from penstock.serving.settings import CONTEXT, MODEL, PRECISION, THREADS
from penstock.transcription.audio_inputs import AudioInput, FolderWatch, find_audio
from penstock.transcription.manifest import is_stated_wrongly
from penstock.transcription.progress import Progress
from penstock.transcription.result_files import FORMATS, LATTICE, RTTM, ResultFiles, document
from penstock.transcription.shards import SHARD_HELP, parse_shard
from penstock_common.audio.sound_file import open_audio
from penstock_common.audio.tracks import CHANNELS, EACH, MIX, Channel, channel_names, parse_channel
from penstock_common.declaration import read_flags
from penstock_common.options import (
    ENDPOINTS,
    OWN_OPTIONS,
    StreamOptions,
    is_live_window,
    parse_phrase,
    split_decoder_flag,
)

if TYPE_CHECKING:
    from penstock.transcription.files import FileTranscript, Transcriber

ATTENTION_HELP = (
    "of an offline model: full, or local=LEFT,RIGHT in encoder frames (the checkpoint's; above 10 min local=128,128)"
)
_LOOK_S = 1.0
"""Between two looks into watched directories."""
MAX_REQUEST_MS = round(1000 * MAX_REQUEST_S)
_SETTINGS = tuple(option for option in DecodingConfig.options() if option.decoders)
_OF_STREAMS = tuple(
    option
    for option in StreamOptions.options()
    if option.name not in (*DecodingConfig.model_fields, *OWN_OPTIONS, "boosted_phrases")
)
"""Options that only streams have."""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Registers the command."""
    parser = subparsers.add_parser("transcribe")
    parser.add_argument(
        "audio", nargs="*", metavar="AUDIO", help="audio files, and directories with audio files; - is standard input"
    )
    parser.add_argument("--files-from", metavar="FILE", help="list of audio files, one path per line")
    parser.add_argument("--from-manifest", metavar="FILE", help="NeMo manifest with the audio files (JSON lines)")
    parser.add_argument("--shard", metavar="I/N", help=SHARD_HELP)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the transcripts to files in this directory")
    parser.add_argument(
        "--format", metavar="NAMES", help=f"formats of these files, separated by commas: {', '.join(FORMATS)} (txt)"
    )
    parser.add_argument(
        "--lattices", type=Path, metavar="DIR", help="write the alternatives of --n-best as OpenFst text"
    )
    parser.add_argument(
        "--watch", action="store_true", help="go on with files that appear in the directories, until Ctrl-C or SIGTERM"
    )
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument("--force", action="store_true", help="overwrite files of --out that exist")
    existing.add_argument("--resume", action="store_true", help="skip audio whose files of --out all exist")
    MODEL.add_flag(parser)
    CONTEXT.add_flag(parser)
    parser.add_argument("--attention", metavar="NAME", help=ATTENTION_HELP)
    parser.add_argument(
        "--channel", default=MIX, metavar="NAME", help=f"what to transcribe of several channels: {CHANNELS} ({MIX})"
    )
    parser.add_argument("--request-ms", type=float, metavar="MS", help="audio per request (one chunk)")
    parser.add_argument(
        "--streams",
        type=int,
        metavar="N",
        help="files transcribed at the same time, in all processes together (16 in each process)",
    )
    parser.add_argument(
        "--processes", type=int, metavar="N", help="processes that share the files (one per core, or per file if fewer)"
    )
    parser.add_argument("--threads", metavar="N", help="CPU threads of each process (1)")
    PRECISION.add_flag(parser)
    parser.add_argument(
        "--speakers", metavar="BUNDLE", help="say who speaks: a speaker model, as `penstock import` writes it"
    )
    for option in (*_OF_STREAMS, *_SETTINGS):
        option.add_flag(parser)
    parser.add_argument(
        "--boost-phrase", action="append", default=[], metavar="TEXT[:BOOST]", help="boosted phrase; repeatable"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per file, with tokens and word times")
    parser.set_defaults(run=run)


def check_attention(args: argparse.Namespace, is_offline: bool, window: str | None) -> None:
    """SettingError for `--attention` with a streaming model, or with the window of a live stream."""
    if args.attention is not None and (not is_offline or is_live_window(window)):
        what = "--window is that of a live stream" if is_offline else "the model is a streaming model"
        raise SettingError(f"--attention is {shown(args.attention)}, but {what}; accepted: none")


class _Job(NamedTuple):
    """A file to transcribe."""

    audio: AudioInput
    audio_s: float
    """Seconds of audio in all its transcripts; 0 where it is not known yet."""
    channels: Sequence[str | None]
    """The channel of each transcript, None for a mix."""


def run(args: argparse.Namespace) -> int:
    """Transcribes each file or part. One that fails is named on stderr and does not stop the others."""
    from penstock.model.resolve import BUNDLED_MODEL_NOTICE
    from penstock.runtime import prepare_process
    from penstock.transcription.processes import STREAMS_PER_PROCESS, divide

    model = MODEL.read(given=MODEL.given(args))
    _split_decoder(args)
    _check(args)
    channel = _channel(args)
    threads = THREADS.read({}, THREADS.given(args))
    decoding = DecodingConfig(**read_flags(_SETTINGS, args))
    if args.lattices and any(getattr(decoding, name) for name in ENDPOINTS):
        raise SettingError("--lattices is given with an endpoint; accepted: one segment, of which the lattice is")
    options = _stream_options(args, decoding)
    inputs = find_audio(args.audio, args.files_from, args.from_manifest, note, may_be_empty=args.watch)
    if not inputs and not args.watch:
        raise SettingError("no audio: give files, directories, a list with --files-from or a manifest")
    results = ResultFiles(args.out, (args.format or FORMATS[0]).split(",")) if args.out else None
    lattices = ResultFiles(args.lattices, [LATTICE]) if args.lattices else None
    outputs = [files for files in (results, lattices) if files]
    for written in outputs:  # before files are chosen: their names are the same in all shards
        written.choose_names([] if args.watch else inputs)
        written.remove_partials(inputs)
    shard, names = parse_shard(args.shard), [str(each.name) for each in inputs]
    inputs = [inputs[index] for index in shard.choose(names, [each.stated_s for each in inputs])]
    jobs = [] if args.watch else _select(args, outputs, [_job(each, channel) for each in inputs])
    if not jobs and not args.watch:
        note("the results of all files exist" if inputs else f"shard {shard} has none of the {len(names)} files")
        return 0
    if not model:
        note(BUNDLED_MODEL_NOTICE)
    transcripts = sum(len(job.channels) for job in jobs)
    processes, streams = divide(len(jobs), transcripts, args.streams, threads, args.processes)
    if args.watch:
        processes, streams = 1, args.streams or STREAMS_PER_PROCESS
    prepare_process(threads if processes == 1 else 1)
    started_s = time.monotonic()
    transcriber = _open_transcriber(args, streams, decoding, options, jobs)
    if args.speakers:
        transcriber = _with_speakers(transcriber, args, channel)
    loaded = f"the model was loaded in {time.monotonic() - started_s:.1f} s before"
    if args.watch:
        return _watch(args, transcriber, (results, lattices), channel, (threads, loaded))
    return 1 if _transcribe(args, transcriber, jobs, (results, lattices), (processes, threads), loaded) else 0


def _open_transcriber(
    args: argparse.Namespace, streams: int, decoding: DecodingConfig, options: dict[str, Any], jobs: list[_Job]
) -> "Transcriber":
    """Loads the model. streams: files at the same time."""
    from penstock.model.bundle import Checkpoint
    from penstock.model.resolve import int8_notice, resolve_or_bundled
    from penstock.transcription.files import FileTranscriber
    from penstock.transcription.offline import open_recognizer

    context, precision = (option.read({}, option.given(args)) for option in (CONTEXT, PRECISION))
    checkpoint = Checkpoint(resolve_or_bundled(MODEL.read(given=MODEL.given(args))))
    _check_decoder(args, args.decoder or offer_decoders(checkpoint.config, decoding).default)
    if notice := int8_notice(checkpoint, precision, "cpu"):
        note(notice)
    is_offline, window = checkpoint.config.encoder.is_offline, options.get("window")
    if is_offline and not is_live_window(window):
        for flag, value in (("--context", context), ("--request-ms", args.request_ms)):
            if value is not None:
                raise SettingError(f"{flag} is {value}, but the model is an offline model; accepted: none")
    check_attention(args, is_offline, window)
    recognizer = open_recognizer(checkpoint, context, streams, "cpu", decoding, args.attention, window, precision)
    recognizer.check_options(options)
    request_samples = recognizer.chunk_samples(options)
    if args.request_ms is not None:
        request_samples = max(1, round(args.request_ms * recognizer.sample_rate_hz / 1000))
    has_languages = checkpoint.config.prompt is not None  # `lang` of other models' manifests changes nothing
    has_own = any(job.audio.language or job.audio.boosted_phrases for job in jobs)
    own = [_with_own(options, job.audio, has_languages) for job in jobs] if has_own else options
    return FileTranscriber(recognizer, request_samples, own, _channel(args))


def _with_own(options: dict[str, Any], audio: AudioInput, has_languages: bool) -> dict[str, Any]:
    """The options with those of a line of a manifest: its language instead, its phrases too."""
    language = {"language": audio.language} if has_languages and audio.language is not None else {}
    phrases = [*(options["boosted_phrases"] or ()), *audio.boosted_phrases]
    return {**options, **language, "boosted_phrases": phrases or None}


def _with_speakers(transcriber: "Transcriber", args: argparse.Namespace, channel: Channel) -> "Transcriber":
    from penstock.speakers.bundle import SpeakerCheckpoint
    from penstock.speakers.diarizer import Diarizer
    from penstock.transcription.speakers import SpeakerTranscriber

    precision = PRECISION.read({}, PRECISION.given(args))
    return SpeakerTranscriber(transcriber, Diarizer(SpeakerCheckpoint(args.speakers), precision), channel)


def _transcribe(
    args: argparse.Namespace,
    transcriber: "Transcriber",
    jobs: list[_Job],
    outputs: tuple[ResultFiles | None, ResultFiles | None],
    sizes: tuple[int, int],
    loaded: str,
) -> int:
    """Prints or writes every transcript; outputs: texts and lattices; sizes: processes, and threads of each.

    loaded: for the summary, when the model was. Returns how many failed.
    """
    from penstock.transcription.files import in_order
    from penstock.transcription.processes import group_parts, transcribe_files

    failures = 0
    (results, _), (processes, threads) = outputs, sizes
    paths, audio_s = [job.audio.part for job in jobs], [job.audio_s for job in jobs]
    order = group_parts(paths, audio_s, processes, longest_first=processes > 1)
    with Progress(sys.stderr, len(jobs), sum(job.audio_s for job in jobs)) as progress:
        done = progress.count(transcribe_files(transcriber, paths, processes, progress.add_audio, order, threads))
        for index, transcripts in done if results else in_order(done):
            progress.clear()
            for transcript in transcripts:
                if transcript.text or transcript.error is None:  # else the file failed before any text
                    for files in filter(None, outputs):
                        files.write(jobs[index].audio, transcript)
                    if not results:
                        _print(transcript, args.json, is_named=len(jobs) > 1 or transcript.channel is not None)
                if transcript.error is not None:
                    failures += 1
                    note(f"error: {transcript.error}")
            for line in dict.fromkeys(
                f"{each.audio_name}: {remark.text}" for each in transcripts for remark in each.remarks
            ):
                note(f"warning: {line}")
            _warn_of_duration(jobs[index].audio, transcripts[0])
        if results:
            progress.clear()
            note(f"{progress.summary()} ({loaded}), {failures} failed; results are in {args.out}")
    return failures


def _warn_of_duration(audio: AudioInput, transcript: "FileTranscript") -> None:
    if audio.offset_s is None and not transcript.error and is_stated_wrongly(audio.stated_s, transcript.audio_s):
        lasts = f"{audio.stated_s:g} s, but the file lasts {transcript.audio_s:g} s"
        note(f"warning: {audio.path}: duration: {lasts} and is used as a whole, as the line has no offset")


def _watch(
    args: argparse.Namespace,
    transcriber: "Transcriber",
    outputs: tuple[ResultFiles | None, ResultFiles | None],
    channel: Channel,
    conditions: tuple[int, str],
) -> int:
    """Transcribes what appears in the directories; conditions: threads, and `loaded` of `_transcribe`."""
    threads, loaded = conditions
    watch = FolderWatch(lambda: find_audio(args.audio, None, None, may_be_empty=True))
    given = [files for files in outputs if files]
    failures = 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            found = watch.look()
            for files in given:
                files.choose_names(found.files)
            jobs = [_job(each, channel) for each in found.new]
            if not args.force:
                jobs = [job for job in jobs if not _is_done(job, given)]
            if jobs:
                failures += _transcribe(args, transcriber, jobs, outputs, (1, threads), loaded)
            time.sleep(_LOOK_S)
    return 1 if failures else 0


def _split_decoder(args: argparse.Namespace) -> None:
    try:
        split_decoder_flag(args, (*_SETTINGS, *_OF_STREAMS))
    except ValueError as error:
        raise SettingError(str(error)) from None


def _check(args: argparse.Namespace) -> None:
    if args.request_ms is not None and not 0 < args.request_ms <= MAX_REQUEST_MS:  # rejects NaN too
        raise SettingError(f"--request-ms is {args.request_ms:g}; accepted: numbers above 0, up to {MAX_REQUEST_MS}")
    for name in ("streams", "processes"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise SettingError(f"--{name} is {value}; accepted: positive numbers")
    for name in ("format", "force", "resume"):
        if getattr(args, name) and not args.out and not (args.lattices and name != "format"):
            raise SettingError(f"--{name} needs --out DIR")
    if RTTM in (args.format or "").split(",") and not args.speakers:
        raise SettingError(f"--format {RTTM} needs --speakers BUNDLE")
    if args.speakers and "-" in args.audio:
        raise SettingError("--speakers reads a file twice, and standard input is given; accepted: files")
    if args.watch:
        _check_watch(args)
    if args.lattices and args.n_best in (None, "0"):
        raise SettingError("--lattices needs --n-best N")
    if args.lm is not None and args.lm_weight is None:
        raise SettingError("--lm needs --lm-weight W, which is 0 by default")
    if args.json and args.out:
        raise SettingError("--json prints to standard output and cannot be combined with --out; use --format json")


def _check_watch(args: argparse.Namespace) -> None:
    if not args.out:
        raise SettingError("--watch needs --out DIR")
    if not args.audio or args.files_from or args.from_manifest or not all(map(os.path.isdir, args.audio)):
        raise SettingError("--watch is given with other audio than directories; accepted: existing directories")
    if args.processes:
        raise SettingError("--processes cannot be combined with --watch, which uses one process")
    if args.shard:
        raise SettingError("--shard cannot be combined with --watch; accepted: other directories on each machine")


def _check_decoder(args: argparse.Namespace, decoder: str) -> None:
    """SettingError for a flag that changes nothing in this decoder."""
    for setting in _SETTINGS:
        if setting.given(args) is not None and decoder not in setting.decoders:
            accepted = ", ".join(setting.decoders)
            raise SettingError(f"{setting.flag} is given, but the decoder is {decoder}; accepted with: {accepted}")


def _channel(args: argparse.Namespace) -> Channel:
    try:
        return parse_channel(args.channel)
    except ValueError as error:
        raise SettingError(f"--{error}") from error


def _job(audio: AudioInput, channel: Channel) -> _Job:
    """Reads the header of the file unless a manifest has its duration."""
    if audio.stated_s is not None and channel != EACH:
        return _Job(audio, audio.stated_s, [None])
    file_s, channels = 0.0, list[str | None]([None])
    if os.path.isfile(audio.path):
        with contextlib.suppress(AudioError), named(audio.path), contextlib.closing(open_audio(audio.path)) as reader:
            file_s = reader.seconds or 0.0  # an error is reported when the file is transcribed
            channels = [*channel_names(reader.channels)] if channel == EACH else [None]
    audio_s = max(0.0, min(file_s, audio.part.end_s) - audio.part.begin_s)
    return _Job(audio, len(channels) * audio_s, channels)


def _select(args: argparse.Namespace, outputs: list[ResultFiles], jobs: list[_Job]) -> list[_Job]:
    """The files to transcribe, with --resume without those that are done. OutputError if there are results."""
    if args.resume:
        return [job for job in jobs if not _is_done(job, outputs)]
    for path in (path for job in jobs if not args.force for path in _results_of(job, outputs)):
        if os.path.exists(path):
            raise OutputError(f"{path} exists; --force overwrites results, --resume skips files that have them")
    return jobs


def _results_of(job: _Job, outputs: list[ResultFiles]) -> list[Path]:
    return [path for files in outputs for channel in job.channels for path in files.paths(job.audio, channel)]


def _is_done(job: _Job, outputs: list[ResultFiles]) -> bool:
    return all(map(os.path.exists, _results_of(job, outputs)))


def _print(transcript: "FileTranscript", as_json: bool, is_named: bool) -> None:
    if as_json:
        print(json.dumps(document(transcript), ensure_ascii=False), flush=True)
        return
    print(f"{transcript.name}: {transcript.text}" if is_named else transcript.text, flush=True)
    for alternative in transcript.alternatives:
        print(f"{alternative.score:9.2f}  {alternative.text}", flush=True)


def _stream_options(args: argparse.Namespace, decoding: DecodingConfig) -> dict[str, Any]:
    """Options of every file's stream; `penstock.pipeline.options.stream_options` checks them."""
    try:
        options = read_flags(_OF_STREAMS, args)
        phrases = [parse_phrase("--boost-phrase", argument) for argument in args.boost_phrase]
    except ValueError as error:
        raise SettingError(str(error)) from None
    beam_size = None if args.beam_size is None else decoding.beam_size
    return {**options, "boosted_phrases": phrases or None, "beam_size": beam_size}
