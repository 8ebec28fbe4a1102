"""`penstock transcribe`: audio files to text in this process, streaming, without a server."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ManifestError, SettingError
from penstock.frontend.channels import ACCEPTED, MIX, Channel, parse_channel
from penstock.pipeline.decoding_config import DECODERS, DECODING_SETTINGS, DecodingConfig
from penstock.serving.settings import CONTEXT, MODEL, THREADS

if TYPE_CHECKING:
    from penstock.file_transcriber import FileTranscript

MAX_REQUEST_MS = 30_000
_SETTINGS = tuple(setting for setting in DECODING_SETTINGS if setting.decoders)


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Registers the command."""
    parser = subparsers.add_parser("transcribe", help="transcribe audio files without a server")
    parser.add_argument(
        "audio", nargs="*", metavar="AUDIO", help="wav, flac, ogg, opus, mp3 or au files; - is standard input"
    )
    parser.add_argument("--from-manifest", metavar="FILE", help="NeMo manifest with the audio files (JSON lines)")
    MODEL.add_flag(parser)
    CONTEXT.add_flag(parser)
    parser.add_argument(
        "--channel", default=MIX, metavar="NAME", help=f"what to transcribe of several channels: {ACCEPTED} ({MIX})"
    )
    parser.add_argument("--request-ms", type=float, default=100.0, metavar="MS", help="audio per request (100)")
    parser.add_argument("--streams", type=int, default=8, metavar="N", help="files streamed in parallel (8)")
    THREADS.add_flag(parser)
    parser.add_argument(
        "--decoder", metavar="NAME", help=f"search: {', '.join(DECODERS)} (greedy; ctc without a transducer)"
    )
    parser.add_argument("--n-best", type=int, metavar="N", help="alternatives in the JSON output, with alsd or aes")
    for setting in _SETTINGS:
        setting.add_flag(parser)
    parser.add_argument(
        "--boost-phrase", action="append", default=[], metavar="TEXT", help="boosted phrase; repeatable"
    )
    parser.add_argument("--boost", type=float, metavar="B", help="bonus per token of a boosted phrase, in nats (2)")
    parser.add_argument("--json", action="store_true", help="one JSON object per file, with tokens and word times")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Transcribes each file. A file that fails is named on stderr and does not stop the others."""
    from penstock.file_transcriber import FileTranscriber
    from penstock.model.resolve import BUNDLED_MODEL, BUNDLED_MODEL_NOTICE
    from penstock.recognizer import StreamingRecognizer
    from penstock.runtime import prepare_process

    model = MODEL.read(given=MODEL.given(args))
    _check(args)
    channel = _channel(args)
    paths = args.audio + (_manifest_paths(Path(args.from_manifest)) if args.from_manifest else [])
    if not paths:
        raise SettingError("no audio: give files, or a manifest with --from-manifest")
    context, threads = (setting.read({}, setting.given(args)) for setting in (CONTEXT, THREADS))
    decoding = DecodingConfig(**{setting.name: setting.read({}, setting.given(args)) for setting in _SETTINGS})
    options = _stream_options(args, decoding)
    if not model:
        print(f"penstock: {BUNDLED_MODEL_NOTICE}", file=sys.stderr, flush=True)
    prepare_process(threads)
    recognizer = StreamingRecognizer(model or BUNDLED_MODEL, context, max_streams=args.streams, decoding=decoding)
    recognizer.check_options(options)
    request_samples = max(1, round(args.request_ms * recognizer.sample_rate_hz / 1000))
    failures = 0
    for transcript in FileTranscriber(recognizer, request_samples, options, channel).transcribe(paths):
        if transcript.warning:
            print(f"penstock: warning: {transcript.warning} with --channel", file=sys.stderr, flush=True)
        if transcript.text or not transcript.error:
            names = len(paths) > 1 or transcript.channel is not None
            text = f"{transcript.name}: {transcript.text}" if names else transcript.text
            print(json.dumps(_document(transcript), ensure_ascii=False) if args.json else text, flush=True)
        if transcript.error:
            failures += 1
            print(f"penstock: error: {transcript.error}", file=sys.stderr, flush=True)
    return 1 if failures else 0


def _check(args: argparse.Namespace) -> None:
    if not 0 < args.request_ms <= MAX_REQUEST_MS:  # rejects NaN too
        raise SettingError(f"--request-ms is {args.request_ms:g}; accepted: numbers above 0, up to {MAX_REQUEST_MS}")
    if args.streams < 1:
        raise SettingError(f"--streams is {args.streams}; accepted: positive numbers")


def _channel(args: argparse.Namespace) -> Channel:
    try:
        return parse_channel(args.channel)
    except ValueError as error:
        raise SettingError(f"--{error}") from error


def _stream_options(args: argparse.Namespace, decoding: DecodingConfig) -> dict[str, Any]:
    """Options of every file's stream; `penstock.pipeline.stream_options` checks them."""
    beam_size = None if args.beam_size is None else decoding.beam_size
    options = {"decoder": args.decoder, "beam_size": beam_size, "n_best": args.n_best, "boost": args.boost}
    options["boosted_phrases"] = args.boost_phrase or None
    return {name: value for name, value in options.items() if value is not None}


def _manifest_paths(manifest: Path) -> list[str]:
    """Paths of a manifest's audio; relative ones start at the manifest's folder."""
    try:
        lines = manifest.read_text(encoding="utf-8").splitlines()
        return [str(manifest.parent / json.loads(line)["audio_filepath"]) for line in lines if line.strip()]
    except OSError as error:
        raise ManifestError(f"{manifest}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"{manifest}: not a manifest, JSON lines with audio_filepath expected: {error}") from error


def _document(transcript: "FileTranscript") -> dict[str, Any]:
    return {
        "audio": transcript.audio,
        **({} if transcript.channel is None else {"channel": transcript.channel}),
        "text": transcript.text,
        "tokens": [token.id for token in transcript.tokens],
        "timestamps": [token.timestamp for token in transcript.tokens],
        "words": [
            {"word": w.text, "start_ms": w.start_ms, "end_ms": w.end_ms, "confidence": round(w.confidence, 4)}
            for w in transcript.words
        ],
        "alternatives": [{"text": a.text, "score": a.score} for a in transcript.alternatives],
        "audio_s": transcript.audio_s,
    }
